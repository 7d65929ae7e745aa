// One token's row of a tensor. Where a tensor is small it is fetched whole, so that stepping from token to token asks for nothing.

import { tensor } from '../../lib/api'
import { rowOf, product } from '../../lib/tensor'
import type { Run } from '../../lib/types'

const SMALL = 65_536

export async function rowAt(run: Run, name: string, t: number): Promise<Float32Array> {
  const info = run.tensors.find((each) => each.name === name)
  if (info && product(info.shape) <= SMALL) return rowOf(await tensor(run, name), t)
  return (await tensor(run, name, { t })).data
}

export const rowsAt = (run: Run, names: string[], t: number): Promise<Float32Array[]> => Promise.all(names.map((name) => rowAt(run, name, t)))
