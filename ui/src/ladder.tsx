import { useEffect, useRef } from "preact/hooks";

import { end, labelOf, machineName, titleOf, type Step } from "./steps";

interface LadderProps {
  steps: { step: Step; index: number }[]; // those that are shown
  current: number;
  onStep: (index: number) => void;
}

// mostColumns is how many machines get columns of their own; the style sheet has as many.
const mostColumns = 12;

// Ladder shows the steps as a list whose items stand in the column of their machine. Time goes down.
export function Ladder({ steps, current, onStep }: LadderProps) {
  const machines = [...new Set(steps.map(({ step }) => step.node))];
  const column = (node: string) => Math.min(machines.indexOf(node), mostColumns - 1) + 1;
  const active = useRef<HTMLButtonElement>(null);
  useEffect(() => active.current?.scrollIntoView({ block: "nearest" }), [current]);
  return (
    <div class="ladder" tabIndex={-1}>
      <div class={`rungs n${Math.min(machines.length, mostColumns)}`}>
        <div class="heads" aria-hidden="true">
          {machines.slice(0, mostColumns).map((m, i) => (
            <div key={m} class={`head c${i + 1}`}>
              {machineName(m)}
            </div>
          ))}
        </div>
        <ol aria-label="Steps">
          {steps.map(({ step, index }, i) => {
            const before = steps[i - 1]?.step;
            const moves = before !== undefined && (before.node !== step.node || before.reply !== step.reply);
            return (
              <>
                {before && before.reply !== step.reply && <li class="turn">the reply</li>}
                {moves && before.node !== step.node && <Arrow from={column(before.node)} to={column(step.node)} step={step} />}
                <li key={index} class={`rung c${column(step.node)}`}>
                  <button
                    type="button"
                    ref={index === current ? active : null}
                    class={classOf(step, index === current)}
                    aria-current={index === current ? "step" : undefined}
                    onClick={() => onStep(index)}
                  >
                    <span class="sr">{machineName(step.node)}: </span>
                    <b>{labelOf(step.observation)}</b>
                    <span>{titleOf(step.observation)}</span>
                    {step.observation.owner && <small>{step.observation.owner}</small>}
                  </button>
                </li>
              </>
            );
          })}
        </ol>
      </div>
    </div>
  );
}

export function classOf(step: Step, current: boolean): string {
  const label = labelOf(step.observation);
  const bad = ["Dropped", "Rejected", "Unknown"].includes(step.observation.action);
  return ["step", current && "current", step.quiet && "quiet", bad && "bad", ["dnat", "snat", "mark"].includes(label) && "changed"].filter(Boolean).join(" ");
}

function Arrow({ from, to, step }: { from: number; to: number; step: Step }) {
  const p = step.observation.packet;
  const text = `${end(p.srcIP, p.srcPort)} → ${end(p.dstIP, p.dstPort)}`;
  const [left, right] = from < to ? [from, to] : [to, from];
  return (
    <li class={`arrow s${left} e${right} ${from < to ? "right" : "left"}`} aria-hidden="true">
      <span>{text}</span>
    </li>
  );
}
