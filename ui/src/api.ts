import type { Answer, ChainRules, Details, Hits, Network, Question, Rules } from "./types";

// Problem carries the server's words about what went wrong.
export class Problem extends Error {
  constructor(readonly lines: string[]) {
    super(lines.join("\n"));
  }
}

const tokenKey = "packetwalk-token";

// takeToken moves the token from the address to the tab's own storage, so that the address can be sent to others.
export function takeToken(): void {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get("token");
  if (token === null) return;
  sessionStorage.setItem(tokenKey, token);
  fragment.delete("token");
  const rest = fragment.toString();
  history.replaceState(null, "", rest === "" ? location.pathname : "#" + rest);
}

async function get(path: string, query: URLSearchParams, signal?: AbortSignal, method = "GET"): Promise<Response> {
  const token = sessionStorage.getItem(tokenKey) ?? "";
  let response: Response;
  try {
    response = await fetch(path + "?" + query.toString(), {
      method,
      headers: { "Packetwalk-Token": token },
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(["The page's server does not answer. Start 'packetwalk ui' again, and open the address that it prints."]);
  }
  if (!response.ok) {
    let lines = [`the server answers with status ${response.status}`];
    try {
      const body: unknown = await response.json();
      if (typeof body === "object" && body !== null && "errors" in body && Array.isArray(body.errors)) lines = body.errors.map(String);
    } catch {
      // not JSON: the status says it
    }
    throw new Problem(lines);
  }
  return response;
}

function queryOf(q: Question, open: string[]): URLSearchParams {
  const query = new URLSearchParams({ from: q.from, to: q.to });
  if (q.proto) query.set("proto", q.proto);
  if (q.at) query.set("at", q.at);
  if (q.uid) query.set("uid", q.uid);
  for (const group of open) query.append("open", group);
  return query;
}

export async function fetchNetwork(open: string[]): Promise<Network> {
  const query = new URLSearchParams();
  for (const group of open) query.append("open", group);
  return (await (await get("/api/v1/network", query)).json()) as Network;
}

export async function fetchAnswer(q: Question, open: string[], signal: AbortSignal): Promise<Answer> {
  return (await (await get("/api/v1/answer", queryOf(q, open), signal)).json()) as Answer;
}

// sendPacket sends a real packet, the only request that acts.
export async function sendPacket(q: Question, open: string[], signal: AbortSignal): Promise<Answer> {
  return (await (await get("/api/v1/send", queryOf(q, open), signal, "POST")).json()) as Answer;
}

// streamNetwork calls back for each state of a network that changes, until the signal or the server ends it.
export async function streamNetwork(open: string[], signal: AbortSignal, onNetwork: (n: Network) => void): Promise<void> {
  const query = new URLSearchParams({ stream: "1" });
  for (const group of open) query.append("open", group);
  const body = (await get("/api/v1/network", query, signal)).body;
  if (!body) return;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const document = JSON.parse(line) as Network | { errors: string[] };
      if ("errors" in document) throw new Problem(document.errors);
      onNetwork(document);
    }
  }
}

// save stores the answer as a file of the browser's downloads.
export async function save(q: Question, open: string[], form: "html" | "svg"): Promise<void> {
  const query = queryOf(q, open);
  query.set("form", form);
  const blob = await (await get("/api/v1/answer", query)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = "walk." + form;
  link.click();
  URL.revokeObjectURL(link.href);
}

export async function fetchDetails(id: string, start: boolean): Promise<Details> {
  const query = new URLSearchParams({ id });
  if (start) query.set("start", "1");
  return (await (await get("/api/v1/details", query)).json()) as Details;
}

export async function fetchRules(host: string, start: boolean): Promise<Rules> {
  const query = new URLSearchParams({ host });
  if (start) query.set("start", "1");
  return (await (await get("/api/v1/rules", query)).json()) as Rules;
}

export async function fetchChain(host: string, version: number, table: number, chain: number, offset: number): Promise<ChainRules> {
  const numbers = Object.entries({ version, table, chain, offset }).map(([key, n]): [string, string] => [key, String(n)]);
  return (await (await get("/api/v1/rules/chain", new URLSearchParams([["host", host], ...numbers]))).json()) as ChainRules;
}

export async function fetchHits(host: string, version: number, text: string): Promise<Hits> {
  return (await (await get("/api/v1/rules/find", new URLSearchParams({ host, version: String(version), text }))).json()) as Hits;
}
