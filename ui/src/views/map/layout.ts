// Where everything stands on the map: data rises, the encoder is left and the decoder right (on a phone: above). Pure arithmetic.

import type { Architecture, Edge, Part } from '../../lib/types'

export type StackName = 'encoder' | 'decoder'

export interface Box {
  part: Part
  stack: StackName
  x: number
  y: number
  width: number
  height: number
}

/** A layer: a frame around its boxes, or folded to a plate. */
export interface Plate {
  stack: StackName
  layer: number
  open: boolean
  x: number
  y: number
  width: number
  height: number
  parameters: number
}

export interface Wire {
  edge: Edge
  path: string
  /** Where its shape is written. */
  label: { x: number; y: number; anchor: 'start' | 'middle' | 'end' } | null
}

export interface Layout {
  width: number
  height: number
  boxes: Box[]
  plates: Plate[]
  wires: Wire[]
  /** The way from the bottom of each stack to its top, for what moves along it. */
  trunks: { stack: StackName; path: string }[]
  memory: string[]
}

export interface Options {
  open: (stack: StackName, layer: number) => boolean
  /** The part whose inside is drawn. */
  entered?: string
  narrow?: boolean
}

const GAP = 20
const SIDE = 46
const PAD = 17
const TITLE = 12
const BETWEEN = 112
/** Room on the left of a phone's single column, for the memory's way up. */
const MARGIN = 26

export const ATTENTION = ['self-attention', 'cross-attention', 'sparse-attention', 'retention']

function heightOf(part: Part, entered: boolean): number {
  if (ATTENTION.includes(part.kind)) return entered ? 236 : 82
  return { add: 20, norm: 24, 'feed-forward': 58, softmax: 46, tokens: 36 }[part.kind as string] ?? 38
}

/** Height of a folded layer, and the space above it: many layers make thin plates. */
const plateSize = (count: number): [number, number] => (count > 30 ? [7, 2] : count > 14 ? [18, 3] : [28, 8])

interface Column {
  stack: StackName
  groups: { layer: number | null; parts: Part[] }[]
}

/** Parts by stack and layer, in the order in which data passes them. What belongs to no stack ends the last one. */
export function columns(architecture: Architecture): Column[] {
  const stacks = (['encoder', 'decoder'] as const).filter((stack) => architecture.parts.some((part) => part.stack === stack))
  const last = stacks.at(-1) ?? 'decoder'
  return (stacks.length ? stacks : [last]).map((stack) => {
    const groups: Column['groups'] = []
    for (const part of architecture.parts) {
      if ((part.stack ?? last) !== stack) continue
      if (!groups.length || groups.at(-1)!.layer !== part.layer) groups.push({ layer: part.layer, parts: [] })
      groups.at(-1)!.parts.push(part)
    }
    return { stack, groups }
  })
}

export function layout(architecture: Architecture, { open, entered, narrow = false }: Options): Layout {
  const all = columns(architecture)
  const wide = all.length > 1 ? 396 : 480
  const boxes: Box[] = []
  const plates: Plate[] = []
  const ends: { stack: StackName; x: number; bottom: number; top: number }[] = []

  /** Builds a column upwards from y = 0, so that its y are negative at first. */
  function build({ stack, groups }: Column, x: number) {
    const [folded, apart] = plateSize(groups.length)
    const middle = x + wide / 2
    const inner = wide - 2 * SIDE
    let y = 0
    const put = (part: Part) => {
      const height = heightOf(part, part.id === entered)
      const width = part.kind === 'add' ? 20 : part.kind === 'norm' ? inner * 0.62 : inner
      y -= height
      boxes.push({ part, stack, x: middle - width / 2, y, width, height })
      y -= GAP
    }
    for (const { layer, parts } of groups) {
      if (layer === null) {
        const aside = parts.filter((part) => part.kind === 'position')
        for (const part of parts) {
          if (aside.includes(part)) continue
          put(part)
          const box = boxes.at(-1)!
          // Positions come from the side, into the sum.
          if (part.kind === 'add' || (part.kind === parts.at(-1)!.kind && !parts.some((each) => each.kind === 'add')))
            for (const each of aside.splice(0)) {
              const height = 38
              const left = stack === 'encoder'
              const width = Math.min(wide / 2 - 34, box.x - x - 16)
              boxes.push({ part: each, stack, x: left ? x : x + wide - width, y: box.y + box.height / 2 - height / 2, width, height })
            }
        }
        continue
      }
      const isOpen = open(stack, layer)
      const top = y
      if (isOpen) {
        y -= PAD
        parts.forEach(put)
        y += GAP - PAD - TITLE
      } else y -= folded
      const height = top - y
      plates.push({ stack, layer, open: isOpen, x, y, width: wide, height, parameters: parts.reduce((sum, part) => sum + part.parameters, 0) })
      y -= isOpen ? GAP : apart
    }
    ends.push({ stack, x: middle, bottom: 0, top: boxes.at(-1)!.y + 12 })
    return -y
  }

  const heights = all.map((column, i) => build(column, narrow ? MARGIN : i * (wide + BETWEEN)))
  const tallest = Math.max(...heights)
  const offset = (stack: StackName) => {
    const i = all.findIndex((column) => column.stack === stack)
    return narrow ? heights.slice(i).reduce((a, b) => a + b, 0) + (all.length - 1 - i) * 40 : tallest
  }
  for (const each of [...boxes, ...plates]) each.y += offset(each.stack)
  for (const each of ends) (each.bottom += offset(each.stack)), (each.top += offset(each.stack)) // prettier-ignore

  const width = narrow ? wide + 2 + MARGIN : all.length * wide + (all.length - 1) * BETWEEN
  const height = narrow ? heights.reduce((a, b) => a + b, 0) + (all.length - 1) * 40 : tallest

  const { wires, memory } = wire(architecture, boxes, plates, { narrow, wide })
  const trunks = ends.map(({ stack, x, bottom, top }) => ({ stack, path: `M${x},${bottom}V${Math.max(0, top)}` }))
  return { width, height, boxes, plates, wires, trunks, memory }
}

type Port = { x: number; top: number; bottom: number; left: number; right: number; box?: Box; plate?: Plate; id: string }

function wire(architecture: Architecture, boxes: Box[], plates: Plate[], { narrow, wide }: { narrow: boolean; wide: number }) {
  const byId = new Map(boxes.map((box) => [box.part.id, box]))
  const parts = new Map(architecture.parts.map((part) => [part.id, part]))
  const port = (id: string): Port | null => {
    const box = byId.get(id)
    const part = parts.get(id)
    const plate = box ? undefined : plates.find((each) => each.stack === part?.stack && each.layer === part?.layer)
    const at = box ?? plate
    if (!at) return null
    return { x: at.x + at.width / 2, top: at.y, bottom: at.y + at.height, left: at.x, right: at.x + at.width, box, plate, id: box ? id : `${plate!.stack}.${plate!.layer}` }
  }

  const wires: Wire[] = []
  const memory: string[] = []
  const seen = new Set<string>()

  for (const edge of architecture.edges) {
    const [from, to] = [port(edge.from), port(edge.to)]
    if (!from || !to || from.id === to.id) continue
    const key = `${from.id} ${to.id} ${to.plate ? (edge.kind === 'memory' ? 'memory' : '') : edge.kind}`
    if (seen.has(key)) continue
    seen.add(key)
    const stack = to.box?.stack ?? to.plate!.stack
    const right = stack === 'decoder' // the side on which data goes around a sub-layer

    if (edge.kind === 'memory') {
      const y = (to.top + to.bottom) / 2
      const lane = narrow ? 10 : wide + BETWEEN / 2
      const start = from.top - 10
      const path = bend([[from.x, from.top], [from.x, start], [lane, start], [lane, y], [to.left, y]]) // prettier-ignore
      memory.push(path)
      wires.push({ edge, path, label: memory.length > 1 ? null : { x: narrow ? lane + 8 : lane - 10, y: start - 9, anchor: narrow ? 'start' : 'end' } })
    } else if (edge.kind === 'residual' && to.box) {
      const fork = branch(edge, from, to)
      const out = right ? Math.max(to.x + wide / 2 - 24, to.right) : Math.min(to.x - wide / 2 + 24, to.left)
      const y = (to.top + to.bottom) / 2
      wires.push({ edge, path: bend([[from.x, fork], [out, fork], [out, y], [right ? to.right : to.left, y]]), label: null }) // prettier-ignore
    } else if (Math.abs(from.x - to.x) > 4 && from.box?.part.kind === 'position') {
      const y = (to.top + to.bottom) / 2
      const left = from.x < to.x
      wires.push({ edge, path: `M${left ? from.right : from.left},${y}H${left ? to.left : to.right}`, label: null })
    } else if (between(from, to)) {
      // Past other boxes, as where two sub-layers read the same input.
      const out = to.x + (right ? -1 : 1) * (wide / 2 - 30)
      const [a, b] = [from.top - GAP / 2, to.bottom + GAP / 2]
      wires.push({ edge, path: bend([[from.x, from.top], [from.x, a], [out, a], [out, b], [to.x, b], [to.x, to.bottom]]), label: null }) // prettier-ignore
    } else {
      const roomy = from.top - to.bottom > 14
      wires.push({ edge, path: `M${from.x},${from.top}V${to.bottom}`, label: roomy ? { x: from.x + (right ? -9 : 9), y: (from.top + to.bottom) / 2, anchor: right ? 'end' : 'start' } : null })
    }
  }
  return { wires, memory }

  /** The height at which a residual leaves the trunk: just below the box that reads the same data. */
  function branch(edge: Edge, from: Port, to: Port): number {
    const reader = architecture.edges
      .filter((each) => each.from === edge.from && each.kind === 'data')
      .map((each) => byId.get(each.to))
      .find((box) => box && box.y > to.top)
    return reader ? reader.y + reader.height + GAP / 2 - 1 : from.top - GAP / 2
  }

  function between(from: Port, to: Port): boolean {
    return boxes.some((box) => box.part.kind !== 'position' && box.y + box.height < from.top && box.y > to.bottom && Math.abs(box.x + box.width / 2 - to.x) < 4)
  }
}

/** A line of level and upright pieces with rounded corners. */
export function bend(points: [number, number][], radius = 8): string {
  let path = `M${points[0]}`
  for (let i = 1; i < points.length - 1; i++) {
    const [[ax, ay], [bx, by], [cx, cy]] = [points[i - 1], points[i], points[i + 1]]
    const r = Math.min(radius, Math.hypot(bx - ax, by - ay) / 2, Math.hypot(cx - bx, cy - by) / 2)
    const toward = (x: number, y: number): [number, number] => {
      const d = Math.hypot(x - bx, y - by) || 1
      return [bx + ((x - bx) / d) * r, by + ((y - by) / d) * r]
    }
    path += `L${toward(ax, ay)}Q${bx},${by} ${toward(cx, cy)}`
  }
  return path + `L${points.at(-1)}`
}

/** Where the parameters are: by kind, largest first; a weight that several parts share counts once. */
export function shares(architecture: Architecture): { kind: string; parameters: number }[] {
  const sums = new Map<string, number>()
  for (const part of architecture.parts) {
    const kind = ATTENTION.includes(part.kind) ? 'attention' : part.kind
    if (part.parameters) sums.set(kind, (sums.get(kind) ?? 0) + part.parameters)
  }
  return [...sums].map(([kind, parameters]) => ({ kind, parameters })).sort((a, b) => b.parameters - a.parameters)
}
