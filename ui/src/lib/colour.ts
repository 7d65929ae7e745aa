// Colours that tell the truth to colour-blind eyes too: lightness alone carries the order, in both themes.

import { scaleLinear } from 'd3-scale'

export type Mode = 'light' | 'dark'

// Attention, probabilities: like cividis in the dark; on paper, from paper to ink blue.
const SEQUENTIAL: Record<Mode, string[]> = {
  light: ['#f6f4ee', '#dbe3e8', '#aac3d8', '#6f9cc4', '#3a74a9', '#174d84', '#04264f'],
  dark: ['#171b21', '#12294f', '#35456c', '#6a6d75', '#978f77', '#ccb763', '#ffea8a'],
}

// Signed values: blue below zero, nothing at zero, orange above.
const DIVERGING: Record<Mode, string[]> = {
  light: ['#0b4f8a', '#4e8fc4', '#a9cbe4', '#f6f4ee', '#f3c79a', '#d98324', '#8f4a00'],
  dark: ['#9fd0ff', '#4a93d1', '#22507c', '#171b21', '#70451b', '#c9792a', '#ffc88a'],
}

/** One hue each, of Okabe and Ito's set. `ink` is for text: its contrast with the page is at least 4.5. */
export const HUES = {
  encoder: { light: '#0072b2', dark: '#56b4e9' },
  decoder: { light: '#b34d00', dark: '#f0a35a' },
  cross: { light: '#007a5a', dark: '#3fcfa3' },
} as const

export type Hue = keyof typeof HUES

/** Surfaces that text and marks must stand out from. */
export const PAPER: Record<Mode, string> = { light: '#fbfaf6', dark: '#111418' }
export const INK: Record<Mode, string> = { light: '#1b1e24', dark: '#e9e7e1' }
export const MUTED: Record<Mode, string> = { light: '#5d6470', dark: '#9ba4af' }

const ramp = (stops: string[]) => scaleLinear<string>(stops.map((_, i) => i / (stops.length - 1)), stops).clamp(true)

const SCALES = {
  sequential: { light: ramp(SEQUENTIAL.light), dark: ramp(SEQUENTIAL.dark) },
  diverging: { light: ramp(DIVERGING.light), dark: ramp(DIVERGING.dark) },
}

export type Scale = keyof typeof SCALES

/** A number's colour: `domain` is [low, high]; a diverging scale is made symmetric around zero. What is no number is drawn as none. */
export function colour(value: number, scale: Scale, domain: readonly [number, number], mode: Mode): string {
  const where = portion(value, scale, domain)
  return SCALES[scale][mode](Number.isFinite(where) ? where : scale === 'diverging' ? 0.5 : 0)
}

/** Where a number stands in its scale, from 0 to 1. */
export function portion(value: number, scale: Scale, [low, high]: readonly [number, number]): number {
  if (scale === 'diverging') {
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1
    return (value / reach + 1) / 2
  }
  return high === low ? (value === low ? 0 : 1) : (value - low) / (high - low)
}

/** 256 steps of a scale as RGB, for images of many cells. */
export function table(scale: Scale, mode: Mode): Uint8ClampedArray {
  const out = new Uint8ClampedArray(256 * 3)
  for (let i = 0; i < 256; i++) out.set(rgb(SCALES[scale][mode](i / 255)), i * 3)
  return out
}

export function rgb(text: string): [number, number, number] {
  if (text.startsWith('#')) return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)) as [number, number, number]
  return text.match(/[\d.]+/g)!.slice(0, 3).map(Number) as [number, number, number]
}

/** Relative luminance and contrast, as WCAG 2 defines them. */
export function luminance(text: string): number {
  const [r, g, b] = rgb(text).map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

export function contrast(a: string, b: string): number {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y)
  return (high + 0.05) / (low + 0.05)
}

/** Black or white, whichever can be read on it. */
export const inkOn = (background: string): string => (luminance(background) > 0.2 ? '#14171c' : '#ffffff')
