import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

import { fetchAnswer, fetchNetwork, Problem, save, sendPacket, streamNetwork, takeToken } from "./api";
import { classOf, Ladder } from "./ladder";
import { NetworkMap } from "./map";
import { BoxPanel, StepPanel } from "./panel";
import { keyOf, RulePanel, RulesView, type Meeting, type RuleRef, type Shown } from "./rules";
import { commandOf, labelOf, machineName, percent, stepsOf, titleOf, wayName, type Step } from "./steps";
import type { Answer, Conclusion, Kernel, Network, Outcome, Question } from "./types";

const views = ["map", "ladder", "text", "rules"] as const;
type ViewName = (typeof views)[number];

// Place holds what the address bar has beside the question.
interface Place {
  question: Question | undefined;
  way: number;
  step: number;
  view: ViewName;
}

function readPlace(): Place {
  const p = new URLSearchParams(location.hash.slice(1));
  const from = p.get("from");
  const to = p.get("to");
  const question: Question | undefined = from && to ? { from, to } : undefined;
  for (const key of ["proto", "at", "uid"] as const) {
    const value = p.get(key);
    if (question && value) question[key] = value;
  }
  const view = views.find((v) => v === p.get("view")) ?? "map";
  return { question, way: Number(p.get("way") ?? 1) - 1, step: Number(p.get("step") ?? 0), view };
}

function writePlace(p: Place): void {
  const f = new URLSearchParams();
  if (p.question) {
    for (const [key, value] of Object.entries(p.question)) if (typeof value === "string" && value !== "") f.set(key, value);
    if (p.way > 0) f.set("way", String(p.way + 1));
    if (p.step > 0) f.set("step", String(p.step));
  }
  if (p.view !== "map") f.set("view", p.view);
  const text = f.toString();
  history.replaceState(null, "", text === "" ? location.pathname + location.search : "#" + text);
}

// savedAnswer returns the answer of a saved page; undefined on the page of a server.
function savedAnswer(): Answer | undefined {
  const element = document.getElementById("answer");
  return element?.textContent ? (JSON.parse(element.textContent) as Answer) : undefined;
}

// mostWalks limits the walks of this page that rules are compared with.
const mostWalks = 20;

// meetingsOf returns which walks met a rule, by the rule's key. Of one walk's steps at a rule the first one counts.
function meetingsOf(walks: Answer[]): Map<string, Meeting[]> {
  const all = new Map<string, Meeting[]>();
  walks.forEach((walk, answer) =>
    walk.walk.outcomes.forEach((outcome, way) =>
      stepsOf(outcome).forEach(({ node, reply, observation: { rule } }, step) => {
        if (!rule) return;
        const key = keyOf({ host: node, ...rule });
        const meetings = all.get(key) ?? [];
        if (meetings.some((m) => m.answer === answer)) return;
        const q = walk.question;
        const title = `${q.from} → ${q.to}${walk.walk.outcomes.length > 1 ? `, way ${outcome.number}` : ""}${reply ? ", the reply" : ""}`;
        all.set(key, [...meetings, { title, answer, way, step }]);
      }),
    ),
  );
  return all;
}

function App({ saved }: { saved: Answer | undefined }) {
  const start = useMemo(readPlace, []);
  const [network, setNetwork] = useState<Network | undefined>(undefined);
  const [answer, setAnswer] = useState<Answer | undefined>(saved);
  const [question, setQuestion] = useState<Question>(saved?.question ?? start.question ?? { from: "", to: "" });
  const [way, setWay] = useState(Math.max(0, start.way || 0));
  const [current, setCurrent] = useState(Math.max(0, start.step || 0));
  const [view, setView] = useState<ViewName>(start.view);
  const [everyStep, setEveryStep] = useState(false);
  const [playing, setPlaying] = useState(false);
  const [busy, setBusy] = useState(saved === undefined);
  const [problem, setProblem] = useState<string[]>([]);
  const [selected, setSelected] = useState<string | undefined>(undefined);
  const [search, setSearch] = useState("");
  const [open, setOpen] = useState<string[]>([]);
  const [walks, setWalks] = useState<Answer[]>([]); // of this page, the last ones
  const [ruleHost, setRuleHost] = useState("");
  const [wanted, setWanted] = useState<RuleRef | undefined>(undefined);
  const [shownRule, setShownRule] = useState<Shown | undefined>(undefined);
  const request = useRef<AbortController | undefined>(undefined);
  const searchInput = useRef<HTMLInputElement>(null);

  const fail = (error: unknown) => setProblem(error instanceof Problem ? error.lines : [String(error)]);

  const walk = useCallback(
    async (q: Question, groups: string[], keep: boolean, live = false) => {
      request.current?.abort();
      const control = new AbortController();
      request.current = control;
      setBusy(true);
      setProblem([]);
      setPlaying(false);
      try {
        const a = await (live ? sendPacket : fetchAnswer)(q, groups, control.signal);
        setAnswer(a);
        setWalks((before) => [...before.filter((w) => commandOf(w, []) !== commandOf(a, [])), a].slice(-mostWalks));
        setSelected(undefined);
        setShownRule(undefined);
        if (!keep) {
          setWay(0);
          setCurrent(0);
        }
      } catch (error) {
        if (!control.signal.aborted) fail(error);
      } finally {
        if (request.current === control) setBusy(false);
      }
    },
    [],
  );

  const load = useCallback(async (groups: string[]) => {
    try {
      setNetwork(await fetchNetwork(groups));
    } catch (error) {
      fail(error);
    }
  }, []);

  useEffect(() => {
    if (saved) return;
    void load([]).then(() => (start.question ? walk(start.question, [], true) : setBusy(false)));
  }, []);
  // A network that changes is shown as it is. While a walk is shown, its picture stays: the way was made for it.
  useEffect(() => {
    if (saved || !network?.live || answer) return;
    const control = new AbortController();
    let timer = 0;
    const listen = () => {
      streamNetwork(open, control.signal, setNetwork)
        .catch((error: unknown) => !control.signal.aborted && fail(error))
        .finally(() => !control.signal.aborted && (timer = window.setTimeout(listen, 3000)));
    };
    listen();
    return () => {
      control.abort();
      window.clearTimeout(timer);
    };
  }, [network?.live, answer === undefined, open]);

  const outcomes = answer?.walk.outcomes ?? [];
  const chosen = Math.min(way, Math.max(0, outcomes.length - 1));
  const outcome: Outcome | undefined = outcomes[chosen];
  const steps = useMemo(() => stepsOf(outcome), [outcome]);
  const shown = useMemo(() => steps.map((step, index) => ({ step, index })).filter(({ step }) => everyStep || !step.quiet), [steps, everyStep]);
  const index = Math.min(current, Math.max(0, steps.length - 1));
  const step: Step | undefined = steps[index];
  const position = shown.findIndex((s) => s.index >= index);

  // Keys may come faster than the page is drawn, so the next step follows from the last one that was set.
  const move = useCallback(
    (by: number) =>
      setCurrent((c) => {
        const found = shown.findIndex((s) => s.index >= c);
        const at = found < 0 ? shown.length - 1 : found;
        return shown[Math.min(shown.length - 1, Math.max(0, at + by))]?.index ?? c;
      }),
    [shown],
  );

  const isLast = position < 0 || position >= shown.length - 1;
  useEffect(() => {
    if (!playing) return;
    const timer = window.setTimeout(() => (isLast ? setPlaying(false) : move(1)), 1100);
    return () => window.clearTimeout(timer);
  }, [playing, move, index, isLast]);
  useEffect(() => {
    if (!busy) writePlace({ question: answer?.question, way: chosen, step: index, view });
  }, [answer, chosen, index, view, busy]);

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const inText = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "Escape") {
        setSelected(undefined);
        setShownRule(undefined);
        setSearch("");
        if (event.target instanceof HTMLElement) event.target.blur();
        return;
      }
      if (inText || event.ctrlKey || event.metaKey || event.altKey) return;
      switch (event.key) {
        case "ArrowRight":
        case "ArrowDown":
          move(1);
          break;
        case "ArrowLeft":
        case "ArrowUp":
          move(-1);
          break;
        case "Home":
          setCurrent(0);
          break;
        case "End":
          setCurrent(Math.max(0, steps.length - 1));
          break;
        case " ":
          if (event.target instanceof HTMLButtonElement) return;
          setPlaying((p) => !p);
          break;
        case "/":
          searchInput.current?.focus();
          break;
        case "1":
        case "2":
        case "3":
        case "4":
          if (event.key === "4" && saved) return;
          setView(views[Number(event.key) - 1] ?? "map");
          break;
        default:
          return;
      }
      event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [move, steps.length]);

  const picture = answer?.picture ?? network?.picture;
  const found = useMemo(() => {
    const word = search.trim().toLowerCase();
    const boxes = word === "" ? [] : (picture?.boxes ?? []).filter((b) => [b.title, b.detail ?? "", ...(b.facts ?? []).map((f) => f.value)].some((t) => t.toLowerCase().includes(word)));
    return new Set(boxes.map((b) => b.id));
  }, [search, picture]);
  const meetings = useMemo(() => meetingsOf(walks), [walks]);
  const machines = useMemo(
    () => (picture?.boxes ?? []).flatMap((b) => (b.kind === "group" ? (b.members ?? []) : ["subnet", "vnet", "frontend"].includes(b.kind) ? [] : [b.id])),
    [picture],
  );
  const host = ruleHost || step?.node || machines.find((m) => m.startsWith("node/")) || machines[0] || "";
  const showRule = (ref: RuleRef) => {
    setSelected(undefined);
    setRuleHost(ref.host);
    setWanted({ ...ref });
    setView("rules");
  };
  const box = picture?.boxes.find((b) => b.id === selected);
  const ways = answer?.ways[chosen];
  const hosts = useMemo(() => [...new Set(steps.map((s) => s.node))], [steps]);

  const [asking, setAsking] = useState(false); // whether to send
  const ask = (q: Question) => {
    setQuestion(q);
    if (q.from && q.to) void walk(q, open, false);
  };
  const fold = (id: string) => {
    const groups = open.includes(id) ? open.filter((g) => g !== id) : [...open, id];
    setOpen(groups);
    setSelected(undefined);
    void load(groups);
    if (answer && !answer.question.live) void walk(answer.question, groups, true);
  };
  const select = (id: string | undefined) => {
    setPlaying(false);
    setSelected(id === selected ? undefined : id);
  };
  const go = (i: number) => {
    setPlaying(false);
    setSelected(undefined);
    setCurrent(i);
  };

  return (
    <>
      <header class="top">
        <h1>packetwalk</h1>
        <span class="subject">{saved ? "saved walk" : (network?.subject ?? "")}</span>
        {saved ? (
          <span class="asked">
            {saved.question.from} → {saved.question.to} {saved.question.proto ?? ""}
          </span>
        ) : (
          <Form question={question} ends={network?.ends ?? []} busy={busy} onChange={setQuestion} onAsk={ask} onSend={network?.sends ? () => setAsking(true) : undefined} />
        )}
        <Theme />
      </header>
      {problem.length > 0 && (
        <div class="problem" role="alert">
          {problem.map((line, i) => (
            <p key={i}>{line}</p>
          ))}
        </div>
      )}
      {asking && network?.sends && (
        <SendDialog
          question={question}
          sends={network.sends}
          onClose={() => setAsking(false)}
          onSend={() => {
            setAsking(false);
            void walk(question, open, false, true);
          }}
        />
      )}
      {answer && (
        <section class="answer" aria-label="Answer">
          <Headline answer={answer} chosen={chosen} />
          {answer.kernel && <KernelReport kernel={answer.kernel} />}
          {outcomes.length > 1 && <Ways outcomes={outcomes} chosen={chosen} onChoose={(i) => (setWay(i), setCurrent(0), setPlaying(false))} />}
        </section>
      )}
      <div class="bar">
        <div class="tabs" role="tablist" aria-label="View">
          {views.filter((v) => v !== "rules" || !saved).map((v, i) => (
            <button key={v} type="button" role="tab" id={`tab-${v}`} aria-controls="view" aria-selected={view === v} onClick={() => setView(v)} disabled={(v === "ladder" || v === "text") && !answer}>
              <kbd>{i + 1}</kbd> {v}
            </button>
          ))}
        </div>
        {answer && steps.length > 0 && (
          <div class="transport" role="group" aria-label="Steps">
            <button type="button" onClick={() => (setPlaying(false), move(-1))} aria-label="Previous step">◀</button>
            <button type="button" class="play" onClick={() => (isLast && !playing && setCurrent(0), setPlaying(!playing))}>
              {playing ? "pause" : "play"}
            </button>
            <button type="button" onClick={() => (setPlaying(false), move(1))} aria-label="Next step">▶</button>
            <label>
              <input type="checkbox" checked={everyStep} onChange={(e) => setEveryStep(e.currentTarget.checked)} /> every step
            </label>
          </div>
        )}
        <span class="space" />
        {view === "map" && (
          <input ref={searchInput} class="search" type="search" placeholder="find  /" aria-label="Find in the network" value={search} onInput={(e) => setSearch(e.currentTarget.value.replace(/^\//, ""))} />
        )}
        {answer && <Copy text={commandOf(answer, network?.flags ?? [])} />}
        {answer && !saved && (
          <>
            <button type="button" onClick={() => void save(answer.question, open, "html").catch(fail)}>save page</button>
            <button type="button" onClick={() => void save(answer.question, open, "svg").catch(fail)}>save picture</button>
          </>
        )}
      </div>
      <main>
        <div class="view" id="view" role="tabpanel" aria-labelledby={`tab-${view}`}>
          {!picture && <p class="empty">{busy ? "reading the network …" : "There is no network to show."}</p>}
          {picture && view === "map" && (
            <NetworkMap
              picture={picture}
              way={step?.reply ? ways?.back : ways?.there}
              reply={step?.reply ?? false}
              step={step}
              selected={selected}
              found={found}
              hosts={hosts}
              onSelect={select}
            />
          )}
          {answer && view === "ladder" && <Ladder steps={shown} current={index} onStep={go} />}
          {view === "rules" && !saved && host !== "" && (
            <RulesView
              host={host}
              hosts={machines.includes(host) ? machines : [host, ...machines]}
              live={network?.live ?? false}
              meetings={meetings}
              wanted={wanted}
              selected={shownRule}
              onHost={(h) => (setRuleHost(h), setShownRule(undefined))}
              onSelect={setShownRule}
              onProblem={fail}
            />
          )}
          {answer && view === "text" && <pre tabIndex={0}>{answer.text}</pre>}
        </div>
        <aside>
          {view === "rules" && shownRule && (
            <RulePanel
              shown={shownRule}
              meetings={meetings.get(keyOf(shownRule.ref)) ?? []}
              onChain={showRule}
              onMeeting={(m) => {
                const met = walks[m.answer];
                if (!met) return;
                setAnswer(met);
                setQuestion(met.question);
                setWay(m.way);
                setCurrent(m.step);
                setView("map");
              }}
              onClose={() => setShownRule(undefined)}
            />
          )}
          {box && (
            <BoxPanel
              box={box}
              live={!saved}
              isOpen={open.includes(box.id)}
              onFrom={(end) => ask({ ...question, from: end })}
              onTo={(end) => ask({ ...question, to: end })}
              onFold={fold}
              onRules={(h) => (setRuleHost(h), setView("rules"))}
              onClose={() => setSelected(undefined)}
            />
          )}
          {!box && step && view !== "rules" && (
            <StepPanel step={step} count={shown.length} number={position + 1} onRule={saved ? undefined : (r) => showRule({ host: step.node, ...r })} />
          )}
          {!box && view === "rules" && !shownRule && <RulesHelp />}
          {!box && !step && view !== "rules" && <Help outcome={outcome} />}
          {!box && step && view === "map" && <StepList steps={shown} current={index} kernel={answer?.kernel} onStep={go} />}
          {answer && view !== "rules" && <Notes answer={answer} outcome={outcome} />}
        </aside>
      </main>
    </>
  );
}

interface FormProps {
  question: Question;
  ends: string[];
  busy: boolean;
  onChange: (q: Question) => void;
  onAsk: (q: Question) => void;
  onSend: (() => void) | undefined;
}

function Form({ question, ends, busy, onChange, onAsk, onSend }: FormProps) {
  return (
    <form
      onSubmit={(e) => {
        e.preventDefault();
        onAsk(question);
      }}
    >
      <datalist id="ends">
        {ends.map((e) => (
          <option key={e} value={e} />
        ))}
      </datalist>
      <label>
        from <input list="ends" name="from" value={question.from} placeholder="internet/client" spellcheck={false} required onInput={(e) => onChange({ ...question, from: e.currentTarget.value })} />
      </label>
      <label>
        to <input list="ends" name="to" value={question.to} placeholder="svc/shop/web" spellcheck={false} required onInput={(e) => onChange({ ...question, to: e.currentTarget.value })} />
      </label>
      <label>
        <span class="sr">protocol</span>
        <select value={question.proto ?? ""} onChange={(e) => onChange({ ...question, proto: e.currentTarget.value })}>
          <option value="">protocol: default</option>
          <option>tcp</option>
          <option>udp</option>
          <option>icmp</option>
        </select>
      </label>
      <button type="submit" class="primary" disabled={busy}>
        {busy ? "walking …" : "walk"}
      </button>
      {onSend && (
        <button type="button" disabled={busy || !question.from || !question.to} onClick={onSend}>
          send live …
        </button>
      )}
    </form>
  );
}

interface SendProps {
  question: Question;
  sends: string;
  onSend: () => void;
  onClose: () => void;
}

// SendDialog asks before a packet is sent, and says what that does.
function SendDialog({ question, sends, onSend, onClose }: SendProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} class="send" aria-labelledby="send-title" onClose={onClose} onKeyDown={(e) => e.stopPropagation()}>
      <h2 id="send-title">Send one packet?</h2>
      <p>
        <b>{question.from}</b> → <b>{question.to}</b> {question.proto || "protocol: default"}
      </p>
      <p>{sends}</p>
      <p class="actions">
        <button type="button" onClick={onClose}>cancel</button>
        <button type="button" class="primary" onClick={onSend}>send</button>
      </p>
    </dialog>
  );
}

// KernelReport compares the walk with what the kernel did. The first step where they part has both sides, one above the other.
function KernelReport({ kernel }: { kernel: Kernel }) {
  const first = kernel.first;
  const state = first ? "parts" : kernel.complete ? "agrees" : "partly";
  return (
    <div class={`kernel ${state}`} role={first ? "alert" : "status"}>
      <p>
        <b>{first ? "✗" : kernel.complete ? "✓" : "○"}</b> {kernel.summary}
      </p>
      {first && (
        <table class="header">
          <caption>
            they part on {machineName(first.node)}
            {first.reply ? ", on the way back" : ""}
          </caption>
          <tbody>
            <tr>
              <th scope="row">walk</th>
              <td>{first.predicted}</td>
            </tr>
            <tr class="changed">
              <th scope="row">kernel</th>
              <td>{first.observed}</td>
            </tr>
          </tbody>
        </table>
      )}
    </div>
  );
}

// kernelMark says beside a machine's steps whether the kernel did the same there.
function kernelMark(kernel: Kernel | undefined, step: Step): string {
  if (!kernel) return "";
  if (kernel.first?.node === step.node && (kernel.first.reply ?? false) === step.reply) return "✗ kernel parts here";
  return kernel.agree.includes(step.node) ? "✓ kernel agrees" : "";
}

function Headline({ answer, chosen }: { answer: Answer; chosen: number }) {
  const conclusions = answer.walk.conclusions;
  const number = answer.walk.outcomes[chosen]?.number ?? 1;
  const own = conclusions.find((c) => c.outcomes.includes(number)) ?? conclusions[0];
  if (!own) return <p class="headline">{sentence(answer.walk.headline)}</p>;
  return (
    <>
      <p class="headline">
        {sentence(own.text)}
        {conclusions.length > 1 && <span class="share"> {waysOf(own)}</span>}
      </p>
      {conclusions
        .filter((c) => c !== own)
        .slice(0, 3)
        .map((c) => (
          <p class="other" key={c.text}>
            <b>{waysOf(c)}:</b> {c.text}
          </p>
        ))}
      {conclusions.length > 4 && <p class="other">and {conclusions.length - 4} more conclusions of other ways</p>}
      {(own.conditions ?? []).length > 0 && (
        <ul class="conditions" tabIndex={0} aria-label="What the answer depends on">
          {own.conditions?.map((c, i) => (
            <li key={i}>{c}</li>
          ))}
        </ul>
      )}
    </>
  );
}

function waysOf(c: Conclusion): string {
  const numbers = c.outcomes.length > 6 ? `${c.outcomes.slice(0, 6).join(", ")} …` : c.outcomes.join(", ");
  return `${c.outcomes.length === 1 ? "way" : "ways"} ${numbers} (${c.share})`;
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
}

function Ways({ outcomes, chosen, onChoose }: { outcomes: Outcome[]; chosen: number; onChoose: (i: number) => void }) {
  const most = 6;
  if (outcomes.length > most) {
    return (
      <label class="ways">
        way{" "}
        <select value={String(chosen)} onChange={(e) => onChoose(Number(e.currentTarget.value))}>
          {outcomes.map((o, i) => (
            <option key={o.number} value={String(i)}>
              {o.number} of {outcomes.length}: {percent(o)} {wayName(o, outcomes)}
            </option>
          ))}
        </select>
      </label>
    );
  }
  return (
    <div class="ways" role="group" aria-label="Ways">
      {outcomes.map((o, i) => (
        <button type="button" key={o.number} aria-pressed={i === chosen} title={o.short} onClick={() => onChoose(i)}>
          <b>way {o.number}</b> {percent(o)} <span>{wayName(o, outcomes)}</span>
        </button>
      ))}
    </div>
  );
}

interface StepListProps {
  steps: { step: Step; index: number }[];
  current: number;
  kernel: Kernel | undefined;
  onStep: (i: number) => void;
}

function StepList({ steps, current, kernel, onStep }: StepListProps) {
  const active = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    const [item, frame] = [active.current, list.current];
    if (!item || !frame) return;
    const top = item.offsetTop - frame.offsetTop;
    if (top < frame.scrollTop || top + item.offsetHeight > frame.scrollTop + frame.clientHeight) frame.scrollTop = top - frame.clientHeight / 3;
  }, [current]);
  return (
    <section class="panel">
      <h2>
        <span class="where">steps</span>
      </h2>
      <ol class="list" ref={list}>
        {steps.map(({ step, index }, i) => {
          const before = steps[i - 1]?.step;
          const first = before?.node !== step.node || before.reply !== step.reply;
          return (
            <>
              {first && (
                <li class="machine">
                  {step.reply ? "reply: " : ""}
                  {machineName(step.node)} <span class="mark">{kernelMark(kernel, step)}</span>
                </li>
              )}
              <li key={index}>
                <button type="button" ref={index === current ? active : null} class={classOf(step, index === current)} aria-current={index === current ? "step" : undefined} onClick={() => onStep(index)}>
                  <b>{labelOf(step.observation)}</b>
                    <span>{titleOf(step.observation)}</span>
                </button>
              </li>
            </>
          );
        })}
      </ol>
    </section>
  );
}

function Notes({ answer, outcome }: { answer: Answer; outcome: Outcome | undefined }) {
  const assumed = answer.walk.assumed ?? [];
  const notes = [...(answer.walk.query ? [answer.walk.query.text] : []), ...(answer.walk.notes ?? [])];
  if (assumed.length + notes.length === 0 && !answer.walk.more) return null;
  return (
    <details class="panel notes">
      <summary>
        assumed and noted ({assumed.length + notes.length})
      </summary>
      <ul>
        {assumed.map((a, i) => (
          <li key={"a" + i}>
            <b>{a.node ? machineName(a.node) + ": " : ""}</b>
            {a.what}
          </li>
        ))}
        {notes.map((n, i) => (
          <li key={"n" + i}>{n}</li>
        ))}
        {answer.walk.more && <li>there are more outcomes than were walked</li>}
        {outcome && outcome.results === null && <li>this file has no steps of this way</li>}
      </ul>
    </details>
  );
}

function Help({ outcome }: { outcome: Outcome | undefined }) {
  return (
    <section class="panel help">
      {outcome ? (
        <p>The steps of this way are not in this file. {outcome.short}</p>
      ) : (
        <p>Choose two ends above, or click a machine in the map and walk from or to it.</p>
      )}
      <table class="header">
        <tbody>
          {[
            ["← →", "step"],
            ["space", "play, pause"],
            ["1 2 3 4", "map, ladder, text, rules"],
            ["/", "find"],
            ["+ − 0", "zoom in the map; or Ctrl and the wheel"],
            ["Esc", "close"],
          ].map(([key, what]) => (
            <tr key={key}>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function RulesHelp() {
  return (
    <section class="panel help">
      <p>Choose a chain to unfold it, and a rule to read it in full. Chains that walks of this page met are unfolded.</p>
      <table class="header">
        <tbody>
          {[
            ["↑ ↓", "move"],
            ["← →", "fold, unfold"],
            ["Enter", "show the rule"],
          ].map(([key, what]) => (
            <tr key={key}>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Copy({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  const copy = () =>
    void navigator.clipboard.writeText(text).then(() => {
      setDone(true);
      window.setTimeout(() => setDone(false), 1500);
    });
  return (
    <button type="button" onClick={copy} title={text}>
      {done ? "copied" : "copy as command"}
    </button>
  );
}

function Theme() {
  const [theme, setTheme] = useState<string>(document.documentElement.dataset["theme"] ?? "");
  const dark = theme === "dark" || (theme === "" && matchMedia("(prefers-color-scheme: dark)").matches);
  const change = () => {
    const next = dark ? "light" : "dark";
    document.documentElement.dataset["theme"] = next;
    setTheme(next);
  };
  return (
    <button type="button" class="theme" onClick={change} aria-label={dark ? "Light colours" : "Dark colours"}>
      {dark ? "☀" : "☾"}
    </button>
  );
}

takeToken();
const root = document.getElementById("app");
if (root) render(<App saved={savedAnswer()} />, root);
