import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { fetchChain, fetchHits, fetchRules, Problem } from "./api";
import { machineName } from "./steps";
import type { ChainHead, Hits, ListedRule, Rules, RuleTable } from "./types";

// RuleRef names a rule as walks and the list of rules both do.
export interface RuleRef {
  host: string;
  family: string;
  table: string;
  chain: string;
  number: number; // 0 for the end of the chain
}

// Meeting is a step of a walk of this page that met a rule.
export interface Meeting {
  title: string; // of the walk
  answer: number; // index into the walks of this page
  way: number;
  step: number;
}

export const keyOf = (r: RuleRef): string => [r.host, r.family, r.table, r.chain, r.number].join("\u0000");
const chainKey = (r: Omit<RuleRef, "number">): string => [r.host, r.family, r.table, r.chain].join("\u0000");

// Shown is a selected rule with what is known of it.
export interface Shown {
  ref: RuleRef;
  rule: ListedRule | undefined;
  head: ChainHead;
}

// rowHeight is the height of a row in CSS pixels; the style sheet has the same.
const rowHeight = 30;
// pageSize is how many rules the server returns at most at once.
const pageSize = 200;
// refreshTime is how long counters of a lab stay as they are, in milliseconds.
const refreshTime = 5000;

interface Row {
  kind: "table" | "chain" | "rule";
  table: number;
  chain: number;
  rule: number; // index in the chain; its length for the end of the chain
}

interface Loaded {
  version: number;
  writer: string | undefined;
  purpose: string | undefined;
  rules: Map<number, ListedRule>;
  asked: Set<string>; // pages by version and offset
}

interface RulesProps {
  host: string;
  hosts: string[];
  live: boolean;
  meetings: Map<string, Meeting[]>;
  wanted: RuleRef | undefined; // to go to
  selected: Shown | undefined;
  onHost: (host: string) => void;
  onSelect: (shown: Shown | undefined) => void;
  onProblem: (error: unknown) => void;
}

// RulesView lists a machine's rules, chain by chain. Only the rows in view are in the document, and only their rules are asked for.
export function RulesView(props: RulesProps) {
  const { host, meetings, wanted } = props;
  const selected = props.selected?.ref;
  const [rules, setRules] = useState<Rules | undefined>(undefined);
  const [open, setOpen] = useState<Set<string>>(new Set());
  const [search, setSearch] = useState("");
  const [hits, setHits] = useState<Hits | undefined>(undefined);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(0);
  const [, redraw] = useState(0);
  const loaded = useRef(new Map<string, Loaded>());
  const frame = useRef<HTMLDivElement>(null);
  const searches = useRef(0);
  const current = useRef(host);
  current.current = host;

  const load = useCallback(
    async (start: boolean) => {
      const answer = await fetchRules(host, start);
      if (current.current === host) setRules(answer);
      return answer;
    },
    [host],
  );
  useEffect(() => {
    setRules(undefined);
    setHits(undefined);
    setSearch("");
    loaded.current = new Map();
    load(false).catch(props.onProblem);
  }, [host]);
  useEffect(() => {
    if (!props.live) return;
    let timer = 0;
    const again = () => {
      const next = () => (timer = window.setTimeout(again, refreshTime));
      if (document.visibilityState !== "visible") next();
      else load(false).then(next, props.onProblem);
    };
    timer = window.setTimeout(again, refreshTime);
    return () => window.clearTimeout(timer);
  }, [props.live, load]);

  const tables = rules?.tables ?? [];
  const refOf = (t: RuleTable, c: ChainHead, number: number): RuleRef => ({ host, family: t.family, table: t.name, chain: c.name, number });
  const metChains = useMemo(() => {
    const all = new Set<string>();
    for (const key of meetings.keys()) all.add(key.slice(0, key.lastIndexOf("\u0000")));
    return all;
  }, [meetings]);
  // Of a machine that is shown first, what walks met is unfolded.
  useEffect(() => {
    setOpen(new Set([...metChains].filter((key) => key.startsWith(host + "\u0000"))));
  }, [host, metChains]);

  const rows = useMemo(() => {
    const all: Row[] = [];
    tables.forEach((t, table) => {
      all.push({ kind: "table", table, chain: 0, rule: 0 });
      t.chains.forEach((c, chain) => {
        if (c.rules === 0 && !c.hook) return;
        all.push({ kind: "chain", table, chain, rule: 0 });
        if (!open.has(chainKey(refOf(t, c, 0)))) return;
        for (let rule = 0; rule < c.rules + (c.hook ? 1 : 0); rule++) all.push({ kind: "rule", table, chain, rule });
      });
    });
    return all;
  }, [rules, open]);

  const scrollTo = (index: number) => {
    const element = frame.current;
    if (!element) return;
    const top = index * rowHeight;
    if (top < element.scrollTop || top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = Math.max(0, top - element.clientHeight / 3);
    setActive(index);
  };

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, [rules === undefined, hits === undefined]);

  const first = Math.max(0, Math.floor(view.top / rowHeight) - 10);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + 10);
  const visible = rows.slice(first, last);

  const ask = async (row: Row) => {
    const t = tables[row.table]!;
    const c = t.chains[row.chain]!;
    const key = chainKey(refOf(t, c, 0));
    const entry = loaded.current.get(key) ?? { version: 0, writer: undefined, purpose: undefined, rules: new Map(), asked: new Set() };
    loaded.current.set(key, entry);
    const version = rules!.version;
    const offset = Math.floor(Math.min(row.rule, Math.max(0, c.rules - 1)) / pageSize) * pageSize;
    const page = `${version} ${offset}`;
    if (entry.asked.has(page)) return;
    entry.asked.add(page);
    try {
      const answer = await fetchChain(host, version, row.table, row.chain, offset);
      if (answer.version !== version) return void load(false).catch(props.onProblem);
      Object.assign(entry, { version, writer: answer.writer, purpose: answer.for });
      for (const r of answer.rules) entry.rules.set(r.number, r);
      redraw((n) => n + 1);
    } catch (error) {
      entry.asked.delete(page);
      props.onProblem(error);
    }
  };
  useEffect(() => {
    for (const row of visible) if (row.kind === "rule") void ask(row);
  }, [first, last, rows]);

  const fold = (row: Row, unfold?: boolean) => {
    const t = tables[row.table]!;
    const key = chainKey(refOf(t, t.chains[row.chain]!, 0));
    setOpen((before) => {
      const after = new Set(before);
      if (unfold ?? !before.has(key)) after.add(key);
      else after.delete(key);
      return after;
    });
  };

  // goTo unfolds a rule's chain, and scrolls to the rule in the next drawing.
  const [target, setTarget] = useState<RuleRef | undefined>(undefined);
  const goTo = (ref: RuleRef) => {
    searches.current++; // what a search finds after this is not shown
    setHits(undefined);
    setSearch("");
    setTarget(ref);
    setOpen((before) => new Set(before).add(chainKey(ref)));
  };
  useEffect(() => {
    if (wanted && wanted.host === host) goTo(wanted);
  }, [wanted, host]);
  useEffect(() => {
    if (!target || !rules || hits) return;
    const index = rows.findIndex((row) => {
      const t = tables[row.table]!;
      const c = t.chains[row.chain];
      if (t.family !== target.family || t.name !== target.table || c?.name !== target.chain) return false;
      if (target.number < 0) return row.kind === "chain";
      return row.kind === "rule" && (target.number === 0 ? row.rule === c.rules : row.rule === target.number - 1);
    });
    if (index < 0) return;
    scrollTo(index);
    if (rows[index]!.kind === "rule") select(rows[index]!);
    setTarget(undefined);
  }, [target, rows, rules, hits]);

  const ruleOf = (row: Row): ListedRule | undefined => {
    const t = tables[row.table]!;
    return loaded.current.get(chainKey(refOf(t, t.chains[row.chain]!, 0)))?.rules.get(row.rule + 1);
  };
  const select = (row: Row) => {
    const t = tables[row.table]!;
    const head = t.chains[row.chain]!;
    props.onSelect({ ref: refOf(t, head, row.rule === head.rules ? 0 : row.rule + 1), rule: ruleOf(row), head });
  };
  // A rule that was selected before it was read is shown when it is.
  useEffect(() => {
    if (!selected || selected.host !== host || selected.number <= 0) return;
    const rule = loaded.current.get(chainKey(selected))?.rules.get(selected.number);
    const head = tables.find((t) => t.family === selected.family && t.name === selected.table)?.chains.find((c) => c.name === selected.chain);
    if (rule && head && rule !== props.selected?.rule) props.onSelect({ ref: selected, rule, head });
  });

  const find = async (text: string) => {
    const search = ++searches.current;
    setSearch(text);
    if (text.trim() === "" || !rules) return setHits(undefined);
    try {
      const answer = await fetchHits(host, rules.version, text.trim());
      if (answer.version !== rules.version) await load(false);
      if (search === searches.current) setHits(answer);
    } catch (error) {
      if (error instanceof Problem) props.onProblem(error);
    }
  };

  const onKey = (event: KeyboardEvent) => {
    const row = rows[active];
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -rows.length, End: rows.length };
    const by = moves[event.key];
    if (by !== undefined) scrollTo(Math.max(0, Math.min(rows.length - 1, active + by)));
    else if (row && (event.key === "ArrowRight" || event.key === "ArrowLeft") && row.kind === "chain") fold(row, event.key === "ArrowRight");
    else if (row && (event.key === "Enter" || event.key === " ")) row.kind === "chain" ? fold(row) : row.kind === "rule" && select(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const chains = tables.reduce((n, t) => n + t.chains.length, 0);
  const count = tables.reduce((n, t) => n + t.chains.reduce((m, c) => m + c.rules, 0), 0);
  return (
    <div class="rules">
      <div class="rules-bar">
        <label>
          machine{" "}
          <select value={host} onChange={(e) => props.onHost(e.currentTarget.value)}>
            {props.hosts.map((h) => (
              <option key={h} value={h}>
                {machineName(h)}
              </option>
            ))}
          </select>
        </label>
        <input
          type="search"
          class="search rules-search"
          placeholder="address, port, chain, comment …"
          aria-label="Find in the rules"
          value={search}
          onInput={(e) => (e.currentTarget.value === "" ? void find("") : setSearch(e.currentTarget.value))}
          onKeyDown={(e) => e.key === "Enter" && void find(e.currentTarget.value)}
        />
        <button type="button" onClick={() => void find(search)} disabled={!rules}>find</button>
        <span class="count" role="status">
          {rules ? `${chains} ${chains === 1 ? "chain" : "chains"}, ${count} rules` : "reading the rules …"}
        </span>
        {rules && (
          <button type="button" onClick={() => setOpen(new Set())} disabled={open.size === 0}>
            fold all
          </button>
        )}
      </div>
      {rules?.unread && (
        <div class="empty">
          <p>{rules.unread}</p>
          {rules.readable && (
            <button type="button" onClick={() => load(true).catch(props.onProblem)}>
              read this machine (starts a short-lived pod on its node)
            </button>
          )}
        </div>
      )}
      {rules && !rules.unread && count === 0 && <p class="empty">This machine has no rules.</p>}
      {hits && (
        <div class="hits" ref={frame} tabIndex={0} aria-label="Rules found">
          <p class="count">
            {hits.hits.length + (hits.more ?? 0)} found{hits.more ? `, the first ${hits.hits.length} are shown` : ""}{" "}
            <button type="button" onClick={() => void find("")}>back to the chains</button>
          </p>
          <ul>
            {hits.hits.map((h, i) => {
              const t = tables[h.table];
              const c = t?.chains[h.chain];
              if (!t || !c) return null;
              return (
                <li key={i}>
                  <button type="button" class="hit" onClick={() => goTo(refOf(t, c, h.number === 0 ? -1 : h.number))}>
                    <b>
                      {t.family} {t.name} {c.name}
                      {h.number > 0 ? ` ${h.number}` : ""}
                    </b>
                    <code>{h.number === 0 ? `chain with ${c.rules} rules` : h.text}</code>
                  </button>
                </li>
              );
            })}
          </ul>
        </div>
      )}
      {rules && !hits && count > 0 && (
        <div class="rows" ref={frame} role="tree" aria-label={`Rules of ${machineName(host)}`} tabIndex={0} aria-activedescendant={`row-${active}`} onKeyDown={onKey}>
          <Space rows={first} />
          {visible.map((row, i) => {
            const index = first + i;
            const t = tables[row.table]!;
            const c = t.chains[row.chain]!;
            const common = { id: `row-${index}`, role: "treeitem" as const, "aria-posinset": index + 1, "aria-setsize": rows.length };
            const cursor = index === active ? " active" : "";
            if (row.kind === "table") {
              return (
                <div key={`t${row.table}`} class={`row table${cursor}`} {...common} aria-level={1} aria-expanded>
                  <b>
                    {t.family} {t.name}
                  </b>
                  <span class="soft">{t.dialect}</span>
                </div>
              );
            }
            const ref = refOf(t, c, row.rule === c.rules ? 0 : row.rule + 1);
            if (row.kind === "chain") {
              const key = chainKey(ref);
              const isOpen = open.has(key);
              return (
                <div key={`c${row.table}.${row.chain}`} class={`row chain-row${cursor}`} {...common} aria-level={2} aria-expanded={isOpen} onClick={() => (setActive(index), fold(row))}>
                  <span class="twist" aria-hidden="true">{isOpen ? "▾" : "▸"}</span>
                  <b>{c.name}</b>
                  <span class="soft">
                    {c.rules} {c.rules === 1 ? "rule" : "rules"}
                    {c.hook ? `, ${c.hook} ${c.priority ?? 0}, policy ${c.policy ?? ""}` : ""}
                    {c.partial ? ", there may be more" : ""}
                  </span>
                  {metChains.has(key) && <span class="tag">met</span>}
                  <span class="purpose">{loaded.current.get(key)?.purpose ?? ""}</span>
                </div>
              );
            }
            const rule = ruleOf(row);
            const met = meetings.get(keyOf(ref));
            const chosen = selected !== undefined && keyOf(selected) === keyOf(ref);
            return (
              <div
                key={`r${row.table}.${row.chain}.${row.rule}`}
                class={`row rule-row${cursor}${met ? " met" : ""}${chosen ? " chosen" : ""}`}
                {...common}
                aria-level={3}
                aria-selected={chosen}
                onClick={() => (setActive(index), select(row))}
              >
                <span class="number">{row.rule === c.rules ? "end" : row.rule + 1}</span>
                <span class="packets">{rule?.counted ? short(rule.counted.packets) : ""}</span>
                <code>{row.rule === c.rules ? `policy ${c.policy ?? ""}` : rule ? withoutComment(rule) : "…"}</code>
                {met && <span class="tag">met</span>}
                <span class="purpose">{rule?.for ?? ""}</span>
              </div>
            );
          })}
          <Space rows={rows.length - last} />
        </div>
      )}
    </div>
  );
}

// withoutComment returns a rule's text without a comment that the reason beside it replaces. The rule's panel has the whole text.
function withoutComment(rule: ListedRule): string {
  return rule.for ? rule.text.replace(/-m comment --comment (?:"[^"]*"|\S+) ?/g, "").trim() : rule.text;
}

// Space stands for rows that are not drawn. The policy of the page allows no inline style, and an SVG has its height as an attribute.
function Space({ rows }: { rows: number }) {
  return <svg class="space-rows" width="1" height={Math.max(0, rows) * rowHeight} aria-hidden="true" />;
}

// short returns a count in at most five characters: "12.3k".
export function short(n: number): string {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]] as const) if (n >= size * 10 || (n >= size && size > 1e3)) return `${(n / size).toFixed(n >= size * 100 ? 0 : 1)}${unit}`;
  return String(n);
}

interface RulePanelProps {
  shown: Shown;
  meetings: Meeting[];
  onChain: (ref: RuleRef) => void;
  onMeeting: (m: Meeting) => void;
  onClose: () => void;
}

// RulePanel shows one rule in full, who writes it and why, and the walks of this page that met it.
export function RulePanel({ shown, meetings, onChain, onMeeting, onClose }: RulePanelProps) {
  const { ref, rule, head } = shown;
  const text = ref.number === 0 ? `policy ${head.policy ?? ""}` : (rule?.text ?? "reading …");
  return (
    <section class="panel rule-panel" aria-label="Rule" aria-live="polite">
      <h2>
        <span class="where">
          {machineName(ref.host)}, {ref.family} {ref.table} {ref.chain}
        </span>
        <button type="button" class="close" onClick={onClose} aria-label="Close">
          ✕
        </button>
      </h2>
      <p class="title">
        <b>{ref.number === 0 ? "end of the chain" : `rule ${ref.number}`}</b> of {head.rules}
      </p>
      <pre class="rule-text" tabIndex={0}>{text}</pre>
      <table class="header">
        <tbody>
          {rule?.for && <Fact name="why" value={rule.for} />}
          {rule?.writer && <Fact name="written by" value={rule.writer} />}
          {rule?.counted && <Fact name="counted" value={`${rule.counted.packets} ${rule.counted.packets === 1 ? "packet" : "packets"}, ${rule.counted.bytes} bytes`} />}
        </tbody>
      </table>
      {(rule?.targets ?? []).length > 0 && (
        <p class="actions">
          {rule?.targets?.map((to) => (
            <button type="button" key={to} onClick={() => onChain({ ...ref, chain: to, number: -1 })}>
              go to {to}
            </button>
          ))}
        </p>
      )}
      <h3>walks of this page that meet it</h3>
      {meetings.length === 0 ? (
        <p class="why">none so far</p>
      ) : (
        <ul class="meetings">
          {meetings.map((m, i) => (
            <li key={i}>
              <button type="button" class="step" onClick={() => onMeeting(m)}>
                <span>{m.title}</span>
              </button>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      <td>{value}</td>
    </tr>
  );
}
