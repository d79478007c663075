import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { labelOf, machineName, titleOf, type Step } from "./steps";
import type { Box, Picture, Point, Way } from "./types";

// A name of 13 px has at least 12 px at this scale. The first view is not smaller.
const smallest = 0.93;
const largest = 1.25;

interface View {
  x: number;
  y: number;
  scale: number;
}

interface MapProps {
  picture: Picture;
  way: Way | undefined; // of the packet, there or back
  reply: boolean;
  step: Step | undefined;
  selected: string | undefined;
  found: Set<string>;
  hosts: string[]; // that the packet visits
  onSelect: (id: string | undefined) => void;
}

const path = (points: Point[]): string => points.map((p, i) => `${i === 0 ? "M" : "L"}${p[0]} ${p[1]}`).join("");

export function NetworkMap(props: MapProps) {
  const { picture, way, step } = props;
  const frame = useRef<HTMLDivElement>(null);
  const [size, setSize] = useState<[number, number]>([0, 0]);
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 1 });
  const drag = useRef<{ x: number; y: number; view: View; moved: boolean } | undefined>(undefined);

  const fit = (atLeast = smallest): View => {
    const [w, h] = size;
    const scale = Math.min(largest, Math.max(atLeast, Math.min(w / picture.width, h / picture.height)));
    return { x: Math.min(0, (picture.width - w / scale) / 2), y: Math.min(0, (picture.height - h / scale) / 4), scale };
  };

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setSize([element.clientWidth, element.clientHeight]));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (size[0] > 0) setView(fit());
  }, [size[0], size[1], picture.width, picture.height]);

  const stop = step && way ? way.points[way.stops[step.stop] ?? 0] : undefined;
  // Follow the packet: move the view when it leaves it.
  useEffect(() => {
    if (!stop || size[0] === 0) return;
    setView((v) => {
      const [w, h] = [size[0] / v.scale, size[1] / v.scale];
      const edge = 60;
      const x = stop[0] < v.x + edge || stop[0] > v.x + w - edge ? stop[0] - w / 2 : v.x;
      const y = stop[1] < v.y + edge || stop[1] > v.y + h - edge ? stop[1] - h / 2 : v.y;
      return x === v.x && y === v.y ? v : { ...v, x: Math.max(0, Math.min(x, Math.max(0, picture.width - w))), y: Math.max(0, Math.min(y, Math.max(0, picture.height - h))) };
    });
  }, [stop?.[0], stop?.[1]]);

  const zoom = (factor: number, at?: Point) =>
    setView((v) => {
      const scale = Math.min(4, Math.max(0.15, v.scale * factor));
      const [px, py] = at ?? [size[0] / 2, size[1] / 2];
      return { x: v.x + px / v.scale - px / scale, y: v.y + py / v.scale - py / scale, scale };
    });

  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const bounds = element.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, [event.clientX - bounds.left, event.clientY - bounds.top]);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [size[0], size[1]]);

  const onPointerDown = (event: PointerEvent) => {
    if (event.button === 0) drag.current = { x: event.clientX, y: event.clientY, view, moved: false };
  };
  const onPointerMove = (event: PointerEvent) => {
    const d = drag.current;
    if (!d) return;
    const [dx, dy] = [event.clientX - d.x, event.clientY - d.y];
    if (!d.moved && Math.abs(dx) + Math.abs(dy) < 5) return;
    d.moved = true;
    setView({ ...d.view, x: d.view.x - dx / d.view.scale, y: d.view.y - dy / d.view.scale });
  };
  const endDrag = () => {
    const moved = drag.current?.moved ?? false;
    window.setTimeout(() => (drag.current = undefined), 0);
    return moved;
  };

  const onKey = (event: KeyboardEvent) => {
    if (event.key === "+" || event.key === "=") zoom(1.2);
    else if (event.key === "-") zoom(1 / 1.2);
    else if (event.key === "0") setView(fit());
    else return;
    event.preventDefault();
  };

  const met = new Set<string>();
  if (way) for (const box of picture.boxes) if (box.kind !== "subnet" && way.stops.some((s) => isOnEdge(box, way.points[s]))) met.add(box.id);

  const [w, h] = size;
  return (
    <div class="map" ref={frame} onKeyDown={onKey} onPointerDown={onPointerDown} onPointerMove={onPointerMove} onPointerUp={endDrag} onPointerLeave={endDrag}>
      {w > 0 && (
        <svg viewBox={`${view.x} ${view.y} ${w / view.scale} ${h / view.scale}`} width={w} height={h} role="group" aria-label="The network">
          {picture.boxes.map((box) => (
            <BoxShape
              key={box.id}
              box={box}
              met={met.has(box.id)}
              selected={props.selected === box.id}
              found={props.found.has(box.id)}
              onSelect={() => !drag.current?.moved && props.onSelect(box.id)}
            />
          ))}
          <g class="wires" aria-hidden="true">
            {picture.wires.map((wire) => (
              <path key={wire.from + " " + wire.to} d={path(wire.points)} />
            ))}
          </g>
          {way && way.points.length > 1 && (
            <g aria-hidden="true">
              <path class={props.reply ? "way reply" : "way"} d={path(way.points)} />
              {step && <path class={props.reply ? "way reply done" : "way done"} d={path(way.points.slice(0, (way.stops[step.stop] ?? 0) + 1))} />}
            </g>
          )}
          <g class="labels" aria-hidden="true">
            {picture.boxes.map((box) => (
              <Labels key={box.id} box={box} visited={props.hosts.find((h) => box.members?.includes(h))} />
            ))}
          </g>
          {way && step && stop && <Marker way={way} step={step} at={stop} />}
        </svg>
      )}
      {step && (
        <p class="caption" aria-hidden="true">
          <b>
            {step.reply ? "reply, " : ""}
            {machineName(step.node)}
          </b>{" "}
          {labelOf(step.observation)} {titleOf(step.observation)}
        </p>
      )}
      <div class="zoom" role="group" aria-label="Zoom">
        <button type="button" onClick={() => zoom(1.2)} aria-label="Zoom in">+</button>
        <button type="button" onClick={() => zoom(1 / 1.2)} aria-label="Zoom out">−</button>
        <button type="button" onClick={() => setView(fit(0.15))} aria-label="Show the whole network">⤢</button>
      </div>
    </div>
  );
}

function isOnEdge(b: Box, at: Point | undefined): boolean {
  if (!at) return false;
  const [x, y] = at;
  const inside = b.x <= x && x <= b.x + b.w && b.y <= y && y <= b.y + b.h;
  return inside && (x === b.x || x === b.x + b.w || y === b.y || y === b.y + b.h);
}

interface BoxProps {
  box: Box;
  met: boolean;
  selected: boolean;
  found: boolean;
  onSelect: () => void;
}

function BoxShape({ box, met, selected, found, onSelect }: BoxProps) {
  const shape = <rect x={box.x} y={box.y} width={box.w} height={box.h} rx="6" />;
  if (box.kind === "subnet") return <g class="box subnet">{shape}</g>;
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    onSelect();
  };
  const classes = ["box", box.kind, met && "met", selected && "selected", found && "found"].filter(Boolean).join(" ");
  return (
    <g class={classes} tabIndex={0} role="button" aria-pressed={selected} aria-label={`${box.kind} ${box.title} ${box.detail ?? ""}${box.status ? `, ${box.status}` : ""}${met ? ", on the packet's way" : ""}`} onClick={onSelect} onKeyDown={onKey}>
      {shape}
    </g>
  );
}

function Labels({ box, visited }: { box: Box; visited: string | undefined }) {
  if (box.kind === "subnet") {
    return (
      <text class="subnet-title" x={box.x + box.indent} y={box.y + 22}>
        {box.label}
      </text>
    );
  }
  return (
    <>
      <text class="name" x={box.x + box.indent} y={box.y + 20}>
        {box.label}
      </text>
      {box.detail && (
        <text class="detail" x={box.x + box.indent} y={box.y + 38}>
          {visited ? clip(`${visited.split("/").pop()} of ${box.detail}`, Math.floor((box.w - 28) / 7.3)) : box.detail}
        </text>
      )}
      {box.status && (
        <text class={box.alert ? "detail alert" : "detail"} x={box.x + box.w - 10} y={box.y + 38} text-anchor="end">
          {box.status}
        </text>
      )}
    </>
  );
}

// Marker shows the packet at a machine, and moves along the way when the step is at another one.
function Marker({ way, step, at }: { way: Way; step: Step; at: Point }) {
  const dot = useRef<SVGGElement>(null);
  const last = useRef<{ way: Way; index: number } | undefined>(undefined);
  const index = way.stops[step.stop] ?? 0;
  useLayoutEffect(() => {
    const from = last.current;
    last.current = { way, index };
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!from || from.way !== way || from.index === index || still || !dot.current) return;
    const points = index > from.index ? way.points.slice(from.index, index + 1) : way.points.slice(index, from.index + 1).reverse();
    const lengths = points.map((p, i) => (i === 0 ? 0 : Math.abs(p[0] - points[i - 1]![0]) + Math.abs(p[1] - points[i - 1]![1])));
    const total = lengths.reduce((a, b) => a + b, 0);
    if (total === 0) return;
    let sum = 0;
    const frames = points.map((p, i) => {
      sum += lengths[i]!;
      return { transform: `translate(${p[0]}px, ${p[1]}px)`, offset: sum / total };
    });
    dot.current.animate(frames, { duration: Math.min(900, 250 + total), easing: "ease-in-out" });
  }, [way, index]);
  return (
    <g ref={dot} transform={`translate(${at[0]}, ${at[1]})`} class="marker" aria-hidden="true">
      <circle r="9" />
      <circle r="3.5" class="core" />
    </g>
  );
}

function clip(text: string, n: number): string {
  return text.length <= n ? text : text.slice(0, n - 1) + "…";
}
