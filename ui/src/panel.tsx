import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { fetchDetails, Problem } from "./api";
import { end, labelOf, machineName, titleOf, type Step } from "./steps";
import type { Box, Change, Details, Owner, Packet, Rule, Section } from "./types";

// StepPanel shows what decided a step: the rule with its neighbours in the chain, and the packet's header afterwards.
export function StepPanel({ step, count, number, onRule }: { step: Step; count: number; number: number; onRule: ((rule: Rule) => void) | undefined }) {
  const o = step.observation;
  return (
    <section class="panel" aria-live="polite">
      <h2>
        <span class="where">
          {step.reply ? "reply, " : ""}
          {machineName(step.node)}
          {o.hook ? `, ${o.hook}` : ""}
        </span>
        <span class="count">
          step {number} of {count}
        </span>
      </h2>
      <p class="title">
        <b>{labelOf(o)}</b> {titleOf(o)}
      </p>
      {o.rule && <Chain rule={o.rule} />}
      {o.rule && onRule && (
        <p class="actions">
          <button type="button" onClick={() => o.rule && onRule(o.rule)}>
            show in the rules
          </button>
        </p>
      )}
      {(o.owner || o.writer) && (
        <p class="owner">
          {o.owner}
          {o.writer && <span class="writer"> written by: {o.writer}</span>}
        </p>
      )}
      {o.why && !titleOf(o).includes(o.why) && <p class="why">{o.why}</p>}
      <Header packet={o.packet} changes={o.changes ?? []} rows={{ in: o.in, out: o.out, ttl: o.ttl?.toString(), mark: o.mark ? "0x" + o.mark.toString(16) : undefined }} />
    </section>
  );
}

function Chain({ rule }: { rule: Rule }) {
  const hidden = (rule.unmatched ?? 0) - (rule.before?.length ?? 0);
  return (
    <div class="chain">
      <h3>
        {rule.family} {rule.table} <b>{rule.chain}</b>
      </h3>
      <ol>
        {hidden > 0 && (
          <li class="rule hidden">
            {hidden} {hidden === 1 ? "rule" : "rules"} before: not one applies
          </li>
        )}
        {rule.before?.map((r) => (
          <li class="rule before" key={r.number}>
            <span class="number">{r.number}</span>
            <code>{r.text}</code>
            <em>does not apply{r.failed ? `: ${r.failed}` : ""}</em>
          </li>
        ))}
        <li class="rule here" aria-current="true">
          <span class="number">{rule.number === 0 ? "end" : rule.number}</span>
          <code>{rule.text ?? (rule.number === 0 ? "end of the chain" : "")}</code>
          <em>
            {rule.verdict}
            {rule.target ? ` → ${rule.target}` : ""}
          </em>
        </li>
        {rule.after?.map((r) => (
          <li class="rule after" key={r.number}>
            <span class="number">{r.number}</span>
            <code>{r.text}</code>
            <em>not reached here</em>
          </li>
        ))}
      </ol>
    </div>
  );
}

function Header({ packet, changes, rows }: { packet: Packet; changes: Change[]; rows: Record<string, string | undefined> }) {
  const changed = (field: string) => changes.find((c) => c.field === field);
  const others = changes.filter((c) => !["source", "destination", "mark", "ttl"].includes(c.field));
  return (
    <table class="header">
      <caption>the packet after this step</caption>
      <tbody>
        <Row name="protocol" value={packet.protocol} />
        <Row name="source" value={end(packet.srcIP, packet.srcPort)} owner={packet.source} change={changed("source")} />
        <Row name="destination" value={end(packet.dstIP, packet.dstPort)} owner={packet.destination} change={changed("destination")} />
        {Object.entries(rows).map(([name, value]) => {
          const change = changed(name);
          return value === undefined && !change ? null : <Row key={name} name={name} value={value ?? change?.to ?? ""} change={change} />;
        })}
        {others.map((c) => (
          <Row key={c.field} name={c.field} value={c.to} change={c} />
        ))}
      </tbody>
    </table>
  );
}

function Row({ name, value, owner, change }: { name: string; value: string; owner?: Owner | undefined; change?: Change | undefined }) {
  return (
    <tr class={change ? "changed" : ""}>
      <th scope="row">{name}</th>
      <td>
        {change ? (
          <>
            <s>{change.from}</s> <span aria-hidden="true">→</span> <b>{value}</b> <span class="tag">changed</span>
          </>
        ) : (
          value
        )}
        {owner && (
          <small>
            {owner.kind} {owner.name}
            {owner.role ? `: ${owner.role}` : ""}
          </small>
        )}
      </td>
    </tr>
  );
}

interface BoxPanelProps {
  box: Box;
  live: boolean;
  isOpen: boolean;
  onFrom: (end: string) => void;
  onTo: (end: string) => void;
  onFold: (id: string) => void;
  onRules: (host: string) => void;
  onClose: () => void;
}

// BoxPanel shows what is known of a machine.
export function BoxPanel({ box, live, onFrom, onTo, onFold, onRules, onClose }: BoxPanelProps) {
  const target = box.end;
  return (
    <section class="panel box-panel" aria-label={box.title}>
      <h2>
        <span class="where">{box.kind}</span>
        <button type="button" class="close" onClick={onClose} aria-label="Close">
          ✕
        </button>
      </h2>
      <p class="title">
        <b>{box.title}</b>
      </p>
      {live && (
        <p class="actions">
          {target && !target.startsWith("svc/") && (
            <button type="button" onClick={() => onFrom(target)}>
              walk from here
            </button>
          )}
          {target && (
            <button type="button" onClick={() => onTo(target)}>
              walk to here
            </button>
          )}
          {box.kind === "group" && (
            <button type="button" onClick={() => onFold(box.id)}>
              show each pod
            </button>
          )}
        </p>
      )}
      {box.now && (
        <Facts>
          {box.now.map((f, i) => (
            <tr key={i}>
              <th scope="row">{f.name}</th>
              <td>{f.value}</td>
            </tr>
          ))}
        </Facts>
      )}
      {live && box.kind !== "group" ? <BoxDetails box={box} onRules={onRules} /> : <BoxFacts box={box} />}
    </section>
  );
}

function BoxFacts({ box }: { box: Box }) {
  return (
    <Facts>
      {(box.facts ?? []).map((f, i) => (
        <tr key={i}>
          <th scope="row">{f.name}</th>
          <td>{f.value}</td>
        </tr>
      ))}
    </Facts>
  );
}

// BoxDetails shows what the server knows of a machine. Until it answers, it shows what the picture says.
function BoxDetails({ box, onRules }: { box: Box; onRules: (host: string) => void }) {
  const [details, setDetails] = useState<Details | undefined>(undefined);
  const [problem, setProblem] = useState("");
  const load = (start: boolean) => {
    let gone = false;
    setProblem("");
    fetchDetails(box.id, start).then(
      (d) => !gone && setDetails(d),
      (error: unknown) => !gone && setProblem(error instanceof Problem ? error.lines.join(" ") : String(error)),
    );
    return () => void (gone = true);
  };
  useEffect(() => {
    setDetails(undefined);
    return load(false);
  }, [box.id]);
  if (!details) return problem ? <p class="why">{problem}</p> : <BoxFacts box={box} />;
  const object = details.object;
  return (
    <>
      {object ? (
        <>
          <h3>
            {object.kind} {object.name}
          </h3>
          <Facts>
            {object.fields.map(([name, value], i) => (
              <tr key={i}>
                <th scope="row">{name}</th>
                <td>{value}</td>
              </tr>
            ))}
          </Facts>
          {object.command && <pre class="rule-text" tabIndex={0}>{object.command}</pre>}
        </>
      ) : (
        details.sections.length === 0 && <BoxFacts box={box} />
      )}
      {details.unread && <p class="why">{details.unread}</p>}
      {details.readable && (
        <p class="actions">
          <button type="button" onClick={() => load(true)}>read this machine (starts a short-lived pod on its node)</button>
        </p>
      )}
      {details.sections.map((s) => (
        <SectionTable key={s.name} section={s} isOpen={s.name === "interfaces"} onRules={s.name === "rules" ? () => onRules(box.id) : undefined} />
      ))}
    </>
  );
}

function SectionTable({ section, isOpen, onRules }: { section: Section; isOpen: boolean; onRules: (() => void) | undefined }) {
  return (
    <details class="section" open={isOpen}>
      <summary>
        {section.name} <span class="count">{section.rows.length + (section.more ?? 0)}</span>
      </summary>
      {section.unknown && <p class="why">not known in full: {section.unknown}</p>}
      {onRules && (
        <p class="actions">
          <button type="button" onClick={onRules}>show the rules</button>
        </p>
      )}
      <div class="wide" tabIndex={0} aria-label={section.name}>
        <table class="cells">
          <thead>
            <tr>
              {section.columns.map((c) => (
                <th key={c} scope="col">{c}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {section.rows.map((row, i) => (
              <tr key={i}>
                {row.map((cell, j) => (
                  <td key={j}>{cell}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {section.more !== undefined && <p class="why">and {section.more} more</p>}
    </details>
  );
}

function Facts({ children }: { children: ComponentChildren }) {
  return (
    <table class="header">
      <tbody>{children}</tbody>
    </table>
  );
}
