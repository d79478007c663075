import type { Answer, Change, NodeResult, Observation, Outcome, Packet } from "./types";

// Step is one observation with its place on the way.
export interface Step {
  reply: boolean;
  stop: number; // index of the machine's visit, and of its stop on the way
  node: string;
  observation: Observation;
  quiet: boolean; // changes nothing and decides nothing
}

export function stepsOf(outcome: Outcome | undefined): Step[] {
  if (!outcome) return [];
  return [...collect(outcome.results ?? [], false), ...collect(outcome.reply ?? [], true)];
}

function collect(results: NodeResult[], reply: boolean): Step[] {
  return results.flatMap((result, stop) =>
    result.observations.map((observation) => ({ reply, stop, node: result.node, observation, quiet: isQuiet(observation) })),
  );
}

function isQuiet(o: Observation): boolean {
  const changes = (o.changes ?? []).filter((c) => c.field !== "ttl" && !c.field.startsWith("ether"));
  if (changes.length > 0) return false;
  switch (o.stage) {
    case "transmitted":
    case "neighbour":
    case "checked":
    case "conntrack":
      return o.action === "Forwarded";
    case "rule":
      return (o.rule?.number === 0 && ["accept", "return", "continue"].includes(o.rule.verdict ?? "")) || o.rule?.verdict === "break";
  }
  return false;
}

// machineName returns a host's name for people: "node aks-nodepool1-0", "pod web-1".
export function machineName(host: string): string {
  const [kind, ...rest] = host.split("/");
  if (rest.length === 0) return host === "fabric" ? "Azure" : host;
  return `${kind?.replaceAll("-", " ")} ${rest[rest.length - 1]}`;
}

// labelOf returns the word before a step's text, as in the text of the command line.
export function labelOf(o: Observation): string {
  const fields = (o.changes ?? []).map((c) => c.field);
  if (fields.includes("destination")) return "dnat";
  if (fields.includes("source")) return "snat";
  if (fields.includes("mark")) return "mark";
  if (fields.includes("connmark")) return "ctmark";
  if (o.action === "Dropped") return "drop";
  if (o.action === "Rejected") return "reject";
  switch (o.stage) {
    case "received":
      return "in";
    case "transmitted":
      return "out";
    case "routed":
      return "route";
    case "bridged":
      return "bridge";
    case "ended":
      return "end";
  }
  return o.stage;
}

// titleOf returns what happened in a step, in one line.
export function titleOf(o: Observation): string {
  const change = (o.changes ?? []).find((c) => ["destination", "source", "mark", "connmark"].includes(c.field));
  const by = o.componentInfo ? `  by ${o.componentInfo}` : o.why ? `  ${o.why}` : "";
  if (change) return changeText(change) + by;
  switch (o.stage) {
    case "sent":
      return packetText(o.packet);
    case "received":
      return o.in ?? "";
    case "transmitted":
      return o.out ?? "";
    case "rule":
      return ruleText(o);
    case "ended":
      return o.componentInfo ?? o.why ?? "the packet is here";
  }
  return [o.componentInfo, o.why].filter(Boolean).join(": ");
}

function ruleText(o: Observation): string {
  const verdict = o.rule?.verdict ?? "";
  const target = o.rule?.target ? `→ ${o.rule.target}` : verdict;
  return `${o.componentInfo ?? ""} ${target}`;
}

export function changeText(c: Change): string {
  return `${c.from} → ${c.to}`;
}

export function end(ip: string | undefined, port: string | undefined): string {
  if (ip === undefined) return "unknown";
  if (port === undefined || port === "") return ip;
  return ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`;
}

export function packetText(p: Packet): string {
  return `${p.protocol} ${end(p.srcIP, p.srcPort)} → ${end(p.dstIP, p.dstPort)}`;
}

// percent returns a probability for people: "33 %".
export function percent(outcome: Outcome): string {
  const p = outcome.probabilityDecimal;
  if (p === undefined) return "probability unknown";
  if (p === 1) return "";
  const value = p * 100;
  return value < 1 ? "under 1 %" : `${Math.round(value)} %`;
}

// shortName keeps of a long name the end by which names of nodes and pods differ.
function shortName(host: string): string {
  const name = machineName(host);
  const last = name.lastIndexOf("-");
  const kind = name.indexOf(" ");
  return name.length <= 22 || last < 0 || kind < 0 ? name : `${name.slice(0, kind)} …${name.slice(last)}`;
}

// wayName names an outcome by the machines at its end.
export function wayName(outcome: Outcome, all: Outcome[]): string {
  const parts = (outcome.results ?? []).map((r) => r.node);
  const differing = parts.filter((node) => !all.every((o) => (o.results ?? []).some((r) => r.node === node)));
  const names = (differing.length > 0 ? differing : parts.slice(-1)).map(shortName);
  const ending = outcome.end.kind === "delivered" ? "" : ` ${outcome.end.kind}`;
  if (names.length === 0) return end(outcome.end.packet.dstIP, outcome.end.packet.dstPort) + ending;
  return [...new Set(names)].join(" → ") + ending;
}

// commandOf returns the command that prints the same answer.
export function commandOf(answer: Answer, flags: string[]): string {
  const q = answer.question;
  const words = ["packetwalk", "walk", ...flags, "--from", q.from, "--to", q.to];
  if (q.proto) words.push("--proto", q.proto);
  if (q.at) words.push("--at", q.at);
  if (q.uid) words.push("--uid", q.uid);
  if (q.live) words.push("--live");
  return words.map((w) => (/^[\w@%+=:,./-]+$/.test(w) ? w : `'${w.replaceAll("'", `'\\''`)}'`)).join(" ");
}
