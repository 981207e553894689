// Canonical passes: a token has the same bits whether it is generated or trained.
//
//   step.parts.set(nn::Canonical{});                 // of a training pass; train::NamedModel::panels sets it
//   if (nn::is_canonical(step)) ...                  // in a layer that otherwise sums in another order
//
// A generated token and a trained one pass through the same layers with other numbers of rows. What each pass computes
// with on the CPU, and what may differ in the last bits:
//
// part of the model  | generation (infer::Engine, panels)      | training                           | canonical pass
// -------------------|-----------------------------------------|------------------------------------|----------------
// linear layers, head| ops::PrepackedMatrix: the order of sums | MKL or oneDNN: it depends on the   | as generation;
//                    | depends on the inputs alone. bf16: fp32 | rows, on threads and on the        | backward reads
//                    | sums, bias added before one rounding    | library; bias added in the kernel  | the values
// weights stored as  | decoded in parts, and each part packed  | decoded for a library's product    | as generation;
// codes (FrozenForm) | for the product; those of experts, too  |                                    | backward as usual
// attention          | ops::paged_attention: parts of          | ops::attention: blocks of keys     | ops::
//                    | kPagedPart keys, merged in order. fp32  | whose borders depend on the other  | ordered_attention
//                    | softmax for bf16, one rounding at the   | queries; below 8 queries LibTorch  |
//                    | end. Keys are those of the model's dtype|                                    |
// LoRA               | packed A and B, y + (s x At) Bt         | library products added to y        | as generation
// router of experts  | ops::dot_products                       | library                            | as generation
// log-probabilities  | ops::logit_scores of the logits         | fp32 logits of a library, a part   | as generation:
//                    |                                         | of the vocabulary at a time whose  | rounded logits,
//                    |                                         | size depends on the tokens         | one row at a time
// dropout            | off                                     | on                                 | off
// sums over ranks    | one message of the tokens of a step     | one of a micro-batch               | the same sum, in
//                    |                                         |                                    | rank order
//
// These are the same op in both passes, and each row is computed by itself: embeddings, positions, norms (also of
// heads), residuals, rotary tables, caps of attention scores, and the activations of ops::computes_by_element()
// (gelu_new, relu, gates of them and of silu). Packed documents are sequences of their own, and tokens after the last
// one of a row have no effect on those before.
//
// Not canonical, because a part depends on the rows or on the length of the text: activations of LibTorch (the exact
// gelu, tanh, sigmoid: their last elements take another path), caps of the logits, rotary tables that depend on the
// length (models::LongTexts), attention to latents (decoding absorbs a projection), products that gather blocks (2D,
// 2.5D, 3D, Megatron's sequence form), sequence parallelism, fp8, fp16, fp64 and accelerators (no panels).
#pragma once
#include "colossal/nn/forward_context.h"

namespace colossal::nn {

/// A part of ForwardContext: the pass computes every token with the operations of generation. Products do so if their
/// weights are packed with WeightPacking::in_training.
struct Canonical {};

inline bool is_canonical(const ForwardContext& step) { return step.parts.find<Canonical>() != nullptr; }

}  // namespace colossal::nn
