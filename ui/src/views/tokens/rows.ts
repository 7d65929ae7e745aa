// Rows of the embedding; in a saved page, which holds no large matrices, as far as the run itself tells them.

import { tensor, weight } from '../../lib/api'
import type { Tensor } from '../../lib/tensor'
import type { Run } from '../../lib/types'

export interface Source {
  run: Run
  stack: 'encoder' | 'decoder'
  /** Name of the embedding's matrix. */
  matrix: string
  /** By what the model multiplies a row. */
  factor: number
  /** Something else is added to a row, so that it cannot be read off what enters the stack. */
  mixed: boolean
}

export async function rowOf({ run, stack, matrix, factor, mixed }: Source, id: number): Promise<Tensor> {
  try {
    return await weight(run.model, matrix, id)
  } catch (error) {
    const t = (stack === 'encoder' || !run.target.length ? run.source : run.target).findIndex((token) => token.id === id)
    if (t < 0 || mixed) throw error
    const found = await tensor(run, stack + '.embedded', { t }).catch(() => Promise.reject(error))
    return { ...found, data: found.data.map((value) => value / factor) }
  }
}
