import { describe, expect, it } from 'vitest'

import type { Token, TrainingEvent } from '../../lib/types'
import { departure, lossTable, mean, moments, ownChoices, perplexity, placeOf, smoothed } from './forcing'

const token = (id: number): Token => ({ id, piece: String(id), text: String(id), special: false, span: null })
const line = (...ids: number[]) => ids.map(token)
const event = (step: number, free: number[], loss_per_position = [1, 2]): TrainingEvent => ({
  step, steps: 99, loss: 1, dev_loss: 1, source: [], decoder_input: line(1, 5), labels: line(5, 2), loss_per_position, predictions: [], label_probabilities: [], free: line(...free), cross: [],
}) // prettier-ignore

describe('losses', () => {
  it('a model that is certain wavers among one word, one that guesses among all of them', () => {
    expect(perplexity([0, 0])).toBe(1)
    expect(perplexity(Array(3).fill(Math.log(8000)))).toBeCloseTo(8000, 6)
    expect(mean([])).toBeNaN()
  })

  it('is smoothed towards the mean over the vocabulary', () => {
    expect(smoothed(0.2, 9, 0)).toBe(0.2)
    expect(smoothed(0.2, 9, 0.1)).toBeCloseTo(0.18 + 0.9, 12)
  })
})

describe('what the model would have said', () => {
  it('is what the last layer finds likeliest', () => {
    const candidate = (id: number, p: number) => ({ token: token(id), logprob: Math.log(p) })
    const lens = { stack: 'decoder', layers: [{ name: 'a', positions: [[candidate(1, 0.9)]] }, { name: 'b', positions: [[candidate(7, 0.6), candidate(1, 0.2)]] }] }
    const [own] = ownChoices(lens)
    expect(own.token.id).toBe(7)
    expect(own.p).toBeCloseTo(0.6, 12)
    expect(ownChoices(null)).toEqual([])
  })

  it('leaves the reference where the first token differs, or one line ends', () => {
    expect(departure(line(1, 2, 3), line(1, 2, 3))).toBe(3)
    expect(departure(line(1, 9, 3), line(1, 2, 3))).toBe(1)
    expect(departure(line(1, 2, 3), line(1, 2))).toBe(2)
    expect(departure(line(1, 2), line(1, 2, 3))).toBe(3)
  })
})

describe('recorded training', () => {
  it('tells each sentence once, and how much of it is right', () => {
    const found = moments([event(0, [9]), event(5, [9]), event(10, [5]), event(15, [5, 2])])
    expect(found.map((each) => [each.step, each.right])).toEqual([[0, 0], [10, 1], [15, 2]]) // prettier-ignore
  })

  it('keeps the first and the last of many', () => {
    const found = moments(Array.from({ length: 40 }, (_, i) => event(i, [i])), 5)
    expect(found.map((each) => each.step)).toEqual([0, 10, 20, 29, 39])
  })

  it('tabulates losses by position and step', () => {
    expect(Array.from(lossTable([event(0, [], [1, 2]), event(5, [], [3, 4])]))).toEqual([1, 3, 2, 4])
    expect(lossTable([])).toHaveLength(0)
  })

  it('finds the nearest step', () => {
    const events = [event(0, []), event(5, []), event(10, [])]
    expect([-1, 0, 6, 99].map((step) => placeOf(events, step))).toEqual([2, 0, 1, 2])
    expect(placeOf([], 3)).toBe(-1)
  })
})
