// "Where is …?": each thing that people read about the Transformer, by its names in both languages, and where it can be seen.

import type { Selection } from './hash'

export interface Concept {
  en: string
  zh: string
  /** Other names that people search for. */
  also: string
  to: Partial<Selection>
}

const decoder = { stack: 'decoder' } as const

export const concepts: Concept[] = [
  { en: 'Architecture', zh: '整体架构', also: 'encoder decoder stack layers 编码器 解码器 层', to: { view: 'map' } },
  { en: 'Parameters', zh: '参数量', also: 'weights size count 权重', to: { view: 'map' } },
  { en: 'Token', zh: '词元', also: 'piece subword bpe wordpiece sentencepiece merge vocabulary id 分词 子词 词表 合并', to: { view: 'tokens' } },
  { en: 'Embedding', zh: '词嵌入', also: 'vector lookup one-hot matrix 向量 词向量 查表 嵌入', to: { view: 'tokens', options: { part: 'embedding' } } },
  { en: 'Word likeness', zh: '词的相近程度', also: 'cosine similarity 余弦 相似', to: { view: 'tokens', options: { part: 'likeness' } } },
  { en: 'Special tokens', zh: '特殊词元', also: 'bos eos pad unk cls sep mask 开始 结束 填充 未知', to: { view: 'tokens', options: { part: 'special' } } },
  { en: 'Positional encoding', zh: '位置编码', also: 'sine cosine rope rotation order position 正弦 余弦 旋转 顺序', to: { view: 'position' } },
  { en: 'Frequencies as clock hands', zh: '时钟指针', also: 'wavelength period angle 频率 波长 周期 角度', to: { view: 'position', options: { part: 'clocks' } } },
  { en: 'Rotation law', zh: '旋转定律', also: 'relative position shift matrix 相对位置 平移 矩阵', to: { view: 'position', options: { part: 'law' } } },
  { en: 'Rejected position schemes', zh: '没有被采用的位置方案', also: 'integer binary fraction 整数 二进制 比例', to: { view: 'position', options: { part: 'rejected' } } },
  { en: 'Q, K and V', zh: 'Q、K、V', also: 'query key value projection 查询 键 值 投影', to: { view: 'attention', kind: 'self', stack: 'encoder', options: { part: 'match' } } },
  { en: 'Attention scores', zh: '注意力分数', also: 'dot product matrix qk 点积 矩阵', to: { view: 'attention', kind: 'self', stack: 'encoder' } },
  { en: 'Scaling by √d', zh: '除以 √d（缩放）', also: 'scale sqrt dk saturation 缩放 饱和', to: { view: 'attention', kind: 'self', stack: 'encoder', options: { part: 'scale' } } },
  { en: 'Softmax', zh: 'Softmax', also: 'normalise probability exponential 归一化 概率 指数', to: { view: 'attention', kind: 'self', stack: 'encoder', options: { part: 'softmax' } } },
  { en: 'Heads', zh: '多头注意力', also: 'multi-head multihead concat 多头 拼接', to: { view: 'attention', options: { part: 'heads' } } },
  { en: 'Output projection', zh: '输出投影', also: 'W_O concat join heads 拼接 合并', to: { view: 'attention', options: { part: 'join' } } },
  { en: 'Self-attention', zh: '自注意力', also: 'encoder bidirectional 编码器 双向', to: { view: 'attention', kind: 'self', stack: 'encoder' } },
  { en: 'Causal mask', zh: '因果掩码', also: 'masked future triangle look-ahead 未来 上三角 遮挡', to: { view: 'attention', kind: 'masked', ...decoder, options: { part: 'matrix' } } },
  { en: 'Padding mask', zh: '填充掩码', also: 'pad batch 填充 批', to: { view: 'attention', kind: 'self', stack: 'encoder', pad: 3, options: { part: 'matrix' } } },
  { en: 'Cross-attention', zh: '交叉注意力', also: 'encoder-decoder memory 记忆 编码器输出', to: { view: 'attention', kind: 'cross', ...decoder } },
  { en: 'Feed-forward network', zh: '前馈网络', also: 'ffn mlp relu gelu activation hidden 激活 非线性', to: { view: 'block', options: { part: 'ffn' } } },
  { en: 'Residual connection', zh: '残差连接', also: 'skip add stream 残差流 相加', to: { view: 'block', options: { part: 'residual' } } },
  { en: 'Layer normalisation', zh: '层归一化', also: 'layernorm norm rmsnorm batchnorm gamma beta mean variance 归一化 均值 方差', to: { view: 'block', options: { part: 'norm' } } },
  { en: 'What a layer already knows', zh: '每层已知道什么', also: 'logit lens layers 逐层', to: { view: 'block', options: { part: 'lens' } } },
  { en: 'Autoregression', zh: '自回归', also: 'generation one by one step inference 生成 推理 逐词', to: { view: 'decoding', ...decoder } },
  { en: 'Logits', zh: 'Logits（未归一化分数）', also: 'scores output head vocabulary linear 输出层 分数', to: { view: 'output', ...decoder } },
  { en: 'Choosing a token', zh: '选词', also: 'temperature top-k top-p nucleus greedy sampling 温度 采样 贪心', to: { view: 'output', ...decoder } },
  { en: 'KV cache', zh: 'KV 缓存', also: 'memory cache flops 缓存 显存', to: { view: 'decoding', ...decoder, options: { part: 'cache' } } },
  { en: 'Beam search', zh: '束搜索', also: 'hypotheses tree length penalty 集束 假设', to: { view: 'decoding', ...decoder, options: { part: 'beam' } } },
  { en: 'Force another token', zh: '强制另一个词', also: 'prefix what if 前缀 如果', to: { view: 'decoding', ...decoder, options: { part: 'beam' } } },
  { en: 'Teacher forcing', zh: '教师强制', also: 'training shifted right labels 训练 右移 标签', to: { view: 'training' } },
  { en: 'Loss', zh: '损失', also: 'cross-entropy training gradient 交叉熵 训练', to: { view: 'training' } },
  { en: 'Word alignment', zh: '词对齐', also: 'pharaoh 对应', to: { view: 'compare' } },
  { en: "The sentence's score", zh: '句子得分', also: 'log-probability per token 概率 对数', to: { view: 'compare' } },
  { en: 'Image patches', zh: '图像块', also: 'vit vision 图像', to: { view: 'image' } },
  { en: 'A model small enough to check by hand', zh: '可以手算的小模型', also: 'teaching worked example d_model 4 教学 例子 手算', to: { view: 'numbers' } },
]

/** Those whose names hold every word of the query; a name that begins with it comes first. */
export function search(query: string): Concept[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean)
  const text = (each: Concept) => `${each.en} ${each.zh} ${each.also}`.toLowerCase()
  const rank = (each: Concept) => [each.en, each.zh].some((name) => name.toLowerCase().startsWith(words.join(' '))) ? 0 : [each.en, each.zh].some((name) => name.toLowerCase().includes(words.join(' '))) ? 1 : 2 // prettier-ignore
  return concepts.filter((each) => words.every((word) => text(each).includes(word))).sort((a, b) => rank(a) - rank(b))
}
