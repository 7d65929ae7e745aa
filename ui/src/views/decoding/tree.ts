// Where the hypotheses of a beam stand: a column a step, the chosen path on the first line, survivors below it, losers below them.

import type { BeamNode, Decoding } from '../../lib/types'

export const [WIDE, TALL, BOX, HIGH] = [144, 46, 120, 37]

export interface Placed {
  node: BeamNode
  x: number
  y: number
  /** Its line: 0 is the chosen path's. */
  line: number
}

export interface Layout {
  /** By step. */
  columns: Placed[][]
  /** By the node's id. */
  at: Map<number, Placed>
  width: number
  height: number
}

/** In each column: the chosen path first, then who survived, in the order of their parents and then of their sums; then, if asked for, the losers. */
export function layout(decoding: Decoding, losers = true): Layout {
  const columns: Placed[][] = []
  const at = new Map<number, Placed>()
  const steps = new Map<number, BeamNode[]>()
  for (const node of decoding.nodes) if (losers || node.fate !== 'dropped') steps.set(node.step, [...(steps.get(node.step) ?? []), node])
  let deepest = 0
  for (const step of [...steps.keys()].sort((a, b) => a - b)) {
    const parentLine = (node: BeamNode) => at.get(node.parent)?.line ?? 0
    const rank = (node: BeamNode) => (node.fate === 'best' ? 0 : node.fate === 'dropped' ? 2 : 1)
    const nodes = steps.get(step)!.sort((a, b) => rank(a) - rank(b) || (rank(a) === 2 ? 0 : parentLine(a) - parentLine(b)) || b.sum - a.sum)
    columns[step] = nodes.map((node, i) => {
      // Without a chosen path here its line stays free, so that nothing else looks chosen.
      const line = i + (nodes[0].fate === 'best' ? 0 : 1)
      const placed = { node, line, x: (step + 1) * WIDE, y: line * TALL }
      at.set(node.id, placed)
      deepest = Math.max(deepest, line)
      return placed
    })
  }
  return { columns, at, width: (columns.length + 1) * WIDE, height: (deepest + 1) * TALL }
}

/** ((5 + n) / 6)^α */
export const lengthPenalty = (n: number, alpha: number): number => ((5 + n) / 6) ** alpha

/** Running totals, for an area that grows. */
export function running(values: number[]): number[] {
  let sum = 0
  return values.map((value) => (sum += value))
}

/** From one node to another of the next column. */
export function branch(from: { x: number; y: number }, to: { x: number; y: number }): string {
  const [x0, y0, x1, y1] = [from.x + BOX, from.y + HIGH / 2, to.x, to.y + HIGH / 2]
  const middle = (x0 + x1) / 2
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}`
}
