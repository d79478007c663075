// The documents of the server, as docs/ui.md and docs/walk-json.md describe them: the fields that the page uses.

export type Point = [number, number];

export interface Fact {
  name: string;
  value: string;
}

export interface Box {
  id: string;
  kind: string;
  parent?: string;
  title: string;
  label: string;
  detail?: string;
  x: number;
  y: number;
  w: number;
  h: number;
  indent: number;
  members?: string[];
  end?: string;
  facts?: Fact[];
  status?: string;
  alert?: boolean;
  now?: Fact[];
}

export interface Wire {
  from: string;
  to: string;
  points: Point[];
}

export interface Picture {
  width: number;
  height: number;
  boxes: Box[];
  wires: Wire[];
}

export interface Network {
  subject: string;
  live?: boolean;
  sends?: string;
  flags?: string[];
  ends: string[];
  notes?: string[];
  picture: Picture;
}

export interface Question {
  from: string;
  to: string;
  proto?: string;
  at?: string;
  uid?: string;
  live?: boolean;
}

export interface Owner {
  kind: string;
  name: string;
  role?: string;
}

export interface Packet {
  protocol: string;
  srcIP?: string;
  srcPort?: string;
  dstIP?: string;
  dstPort?: string;
  source?: Owner;
  destination?: Owner;
}

export interface Rule {
  family: string;
  table: string;
  chain: string;
  number: number;
  text?: string;
  verdict?: string;
  target?: string;
  failed?: string;
  before?: Rule[];
  unmatched?: number;
  after?: Rule[];
}

export interface Change {
  field: string;
  from: string;
  to: string;
}

export interface Observation {
  component: string;
  componentInfo?: string;
  action: string;
  ttl?: number;
  stage: string;
  hook?: string;
  rule?: Rule;
  owner?: string;
  writer?: string;
  changes?: Change[];
  why?: string;
  in?: string;
  out?: string;
  packet: Packet;
  mark?: number;
}

export interface NodeResult {
  node: string;
  observations: Observation[];
}

export interface End {
  kind: string;
  node: string;
  packet: Packet;
  why?: string;
  listener?: string;
  refused?: boolean;
  forwarder?: string;
}

export interface Choice {
  node: string;
  kind: string;
  rule?: string;
  what: string;
  options: string[];
  answer: number;
  probability?: string;
}

export interface Outcome {
  number: number;
  probability?: string;
  probabilityDecimal?: number;
  short: string;
  choices?: Choice[];
  results: NodeResult[] | null;
  end: End;
  sees: { text: string; conditions?: string[]; srcIP?: string };
  reply?: NodeResult[];
  replyEnd?: End;
}

export interface Conclusion {
  outcomes: number[];
  share: string;
  text: string;
  conditions?: string[];
}

export interface Walk {
  packet: Packet;
  headline: string;
  conclusions: Conclusion[];
  outcomes: Outcome[];
  more?: boolean;
  assumed?: { node?: string; component?: string; what: string }[];
  notes?: string[];
  query?: { text: string };
}

export interface Way {
  points: Point[];
  stops: number[];
}

export interface Answer {
  question: Question;
  picture: Picture;
  ways: { there: Way; back?: Way }[];
  walk: Walk;
  text: string;
  kernel?: Kernel;
}

export interface Kernel {
  steps: number;
  agreed: number;
  complete: boolean;
  summary: string;
  agree: string[];
  first?: { node: string; reply?: boolean; predicted: string; observed: string };
  notSent?: string;
}

export interface Section {
  name: string;
  columns: string[];
  rows: string[][];
  more?: number;
  unknown?: string;
}

export interface Details {
  id: string;
  object?: { kind: string; name: string; fields: [string, string][]; command?: string };
  sections: Section[];
  unread?: string;
  readable?: boolean;
}

export interface ChainHead {
  name: string;
  rules: number;
  hook?: string;
  type?: string;
  priority?: number;
  policy?: string;
  partial?: boolean;
}

export interface RuleTable {
  family: string;
  name: string;
  dialect: string;
  chains: ChainHead[];
}

export interface Rules {
  host: string;
  version: number;
  tables: RuleTable[];
  unread?: string;
  readable?: boolean;
}

export interface ListedRule {
  number: number;
  text: string;
  counted?: { packets: number; bytes: number };
  targets?: string[];
  writer?: string;
  for?: string;
}

export interface ChainRules {
  version: number;
  writer?: string;
  for?: string;
  offset: number;
  rules: ListedRule[];
}

export interface Hits {
  version: number;
  hits: { table: number; chain: number; number: number; text: string }[];
  more?: number;
}
