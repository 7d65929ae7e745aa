import { describe, expect, it } from 'vitest'

import { colour, contrast, HUES, inkOn, INK, luminance, MUTED, PAPER, portion, table, type Mode } from './colour'

const modes: Mode[] = ['light', 'dark']
const steps = Array.from({ length: 65 }, (_, i) => i / 64)

describe.each(modes)('colours, %s', (mode) => {
  it('order by lightness alone, as colour-blind eyes read them', () => {
    const light = steps.map((v) => luminance(colour(v, 'sequential', [0, 1], mode)))
    const signs = light.slice(1).map((value, i) => Math.sign(value - light[i]))
    expect(new Set(signs)).toEqual(new Set([mode === 'light' ? -1 : 1]))
  })

  it('diverge from the same nothing, as far on both sides', () => {
    for (const v of steps.slice(1)) {
      const zero = luminance(colour(0, 'diverging', [-1, 1], mode))
      const [below, above] = [-v, v].map((x) => luminance(colour(x, 'diverging', [-1, 1], mode)))
      expect(Math.sign(below - zero)).toBe(Math.sign(above - zero))
    }
  })

  it('draw what is no number as none', () => {
    expect(colour(NaN, 'diverging', [-1, 1], mode)).toBe(colour(0, 'diverging', [-1, 1], mode))
    expect(colour(NaN, 'sequential', [0, 1], mode)).toBe(colour(0, 'sequential', [0, 1], mode))
  })

  it('make a domain symmetric, so that zero is never tinted', () => {
    expect(portion(0, 'diverging', [-0.1, 5])).toBe(0.5)
    expect(colour(0, 'diverging', [-0.1, 5], mode)).toBe(colour(0, 'diverging', [-7, 1], mode))
  })

  it('let text be read: on the page, and on every cell', () => {
    for (const hue of Object.values(HUES)) expect(contrast(hue[mode], PAPER[mode])).toBeGreaterThanOrEqual(4.5)
    expect(contrast(INK[mode], PAPER[mode])).toBeGreaterThanOrEqual(7)
    expect(contrast(MUTED[mode], PAPER[mode])).toBeGreaterThanOrEqual(4.5)
    for (const scale of ['sequential', 'diverging'] as const)
      for (const v of steps) {
        const cell = colour(v, scale, [0, 1], mode)
        expect(contrast(inkOn(cell), cell)).toBeGreaterThanOrEqual(4)
      }
  })

  it('are the same in images of many cells', () => {
    const colours = table('sequential', mode)
    const [r, g, b] = colour(1, 'sequential', [0, 1], mode).match(/\d+/g)!.map(Number)
    expect([...colours.slice(255 * 3)]).toEqual([r, g, b])
  })
})
