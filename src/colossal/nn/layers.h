// What a model may ask for. A model is written against this factory as if for one process; each factory decides how its
// layers are sharded and attaches the ShardSpec. SerialLayers shards nothing and is what tests compare with; what runs
// is parallel::TensorLayers, over the layout of one rank or of many.
//
//   struct Mlp {
//     explicit Mlp(nn::Layers& make)
//         : norm(make.layer_norm("mlp.norm", 64, {.epsilon = 1e-5})),
//           up(make.expand("mlp.up", 64, 256, {})),
//           down(make.contract("mlp.down", 256, 64, {})) {}
//     at::Tensor forward(const at::Tensor& x, const nn::Step& step) {
//       return x + down->forward(up->forward(norm->forward(x)).map(ops::gelu, step));
//     }
//     std::unique_ptr<nn::Norm> norm;
//     std::unique_ptr<nn::Expand> up;
//     std::unique_ptr<nn::Contract> down;
//   };
//
// Legend of shapes: B batch, S sequence, H hidden, N heads, D head_dim, V vocabulary. All sizes given to the factory
// are logical. The fields of a micro-batch (Step::batch) are whole and the same on all ranks of the model, except that
// a rank may have some of their tokens alone (SequenceCut::given). Embeddings and heads take their part of a field;
// field_part() does for other layers. Hidden states are what the layout gives a rank, its part of B, of S and of H
// (Tokens, and a run of features): a model takes no size of a hidden state for the whole one. Which tokens a rank has
// may differ from batch to batch, so every layer that must know is given the Step; a model hands on the one that it was
// given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/tokens.h"
#include "colossal/tensor/batch.h"

namespace colossal::nn {

class BatchDocuments;  // nn/batch_documents.h
class InputHome;       // nn/input_home.h

/// What a forward pass carries in addition to the hidden state. step_of() (nn/batch_step.h) makes it of a micro-batch.
struct Step {
  at::Tensor positions;  ///< [B, S] int64, of the whole batch like `documents`: layers take their tokens
  /// [B, S] int64: a token attends only inside its own document; undefined: one document a row. Never together with a
  /// cache, of whose tokens this does not tell the documents (Error "model"): give `sequences` there
  at::Tensor documents;
  /// The micro-batch. Embedding, blocks and head of every stage may read its fields, so a constant input is never sent
  /// from stage to stage. `positions` and `documents` are two of its fields. Null only in calls of single layers
  std::shared_ptr<const tensor::Batch> batch{};
  /// What layers have found out about `documents` so far, which the others need not find out again; null: each looks at
  /// them
  std::shared_ptr<BatchDocuments> known_documents{};
  /// How rows are cut into sequences that do not see one another: prompts of unequal lengths in one row
  Sequences sequences{};
  AttentionCache* cache = nullptr;        ///< decoding: attend to these tokens too and append the new ones
  bool training = false;                  ///< dropout is on
  uint64_t dropout_seed = 0;              ///< one per step, the same on all ranks: micro-batches differ in first_row
  Recompute recompute = Recompute::None;  ///< while training
  /// Where the inputs of recomputed blocks lie between forward and backward; null: where they are
  std::shared_ptr<InputHome> inputs{};
  /// Receives what layers report; null: nothing is reported and no loss term is attached, as in evaluation
  std::shared_ptr<ReportAccumulator> reports{};
  bool is_recomputed = false;  ///< this is the second pass of a recomputed block, which reports nothing
  /// Index in the global batch of this batch's first row: masks are drawn by logical index
  int64_t first_row = 0;
  /// Hidden states are one token a row, that of its class, whatever ranks have it: dropout counts rows alone
  bool is_class_token = false;
  /// How this batch's sequence is dealt out to the ranks that split it, and what of it this rank was given; null: in
  /// equal runs, one a rank, of the whole. distributed::DistributedModel sets it, from the layout of the layers
  /// (parallel::Layout::with_cut), and layers alone read it
  std::shared_ptr<const SequenceCut> cut{};
  /// Of a model with an encoder: so many tokens of each row, the first ones, are what the encoder reads; 0: it has read
  /// them in a step before, and `cache` holds what the decoder needs of them. Not given: as many as the model's shape
  /// says (models::Task::source_of)
  std::optional<int64_t> source_tokens{};

  /// Reports a value of this micro-batch: joined with others as declared. Without a gradient.
  /// Errors ("model"): a report that was not declared; another number of elements than declared.
  void report(const Report& what, const at::Tensor& value) const;
  /// Reports the scalar `loss` and returns y, a hidden state, which must not be changed in place afterwards. Backward
  /// through y also goes through `loss`, with a gradient that no layout changes: that of weight x the joined value. The
  /// loss of the model must depend on y.
  /// Errors ("model"): a report that was not declared by add_loss(); a loss that is not one fp32 or fp64 number.
  at::Tensor attach_loss(const Report& term, const at::Tensor& loss, const at::Tensor& y) const;
};

/// An activation between an expand and its contract. Its features are cut by another rule than those outside, and under
/// some layouts its rows too; the sizes may fit a residual all the same. Being a type of its own, it cannot be added to
/// one: an expand without its contract does not compile.
struct Inside {
  at::Tensor tensor;
  Unary pending{};  ///< what the contract is to apply first, and to compute again in backward instead of keeping it
  /// An elementwise operation on it.
  Inside map(const Unary& operation, const Step& step) const {
    if (step.training && step.recompute == Recompute::Selective) return {tensor, operation};
    return {operation(tensor)};
  }
};

/// From outside to inside: y [.., out] = x [B, S, in] Wt + bias. Under some layouts a rank sees more tokens, or others,
/// inside than outside.
class Expand {
 public:
  virtual ~Expand() = default;
  virtual Inside forward(const at::Tensor& x) = 0;
};

/// From inside back to outside: y [B, S, out] = x [.., in] Wt + bias, of what an Expand gave.
class Contract {
 public:
  virtual ~Contract() = default;
  virtual at::Tensor forward(const Inside& x) = 0;
};

/// The fused q, k, v projection; a rank gets whole heads of each, tokens in the order of the sequence.
class HeadProjection {
 public:
  virtual ~HeadProjection() = default;
  virtual Heads forward(const at::Tensor& x /*[B, S, H]*/, const Step& step) = 0;
};

/// The projections of two hidden states: q of one, k and v of another. Both may be the same state, if q has other
/// initial weights than k and v. A source without tokens costs nothing and gives no keys.
class CrossProjection {
 public:
  virtual ~CrossProjection() = default;
  virtual Heads forward(const at::Tensor& x /*[B, T, H]*/, const at::Tensor& source /*[B, S, H]*/,
                        const Step& step) = 0;
};

/// Numbers of each head, in rows that many blocks look into: what learned relative positions add to scores.
class HeadTable {
 public:
  virtual ~HeadTable() = default;
  virtual at::Tensor forward() = 0;  ///< [rows, N_local], the columns of this rank's heads
};

/// From the heads of an Attention back to outside: y [B, S, out] = x [.., N_local * D] Wt + bias.
class OutputProjection {
 public:
  virtual ~OutputProjection() = default;
  virtual at::Tensor forward(const Inside& x, const Step& step) = 0;
};

/// y [..., out] = x [..., in] W^T + b where the features of y are cut as those of x, as between blocks. For the ends of
/// a model alone: ranks that hold the same hidden states all make the same products, where those of an Expand and a
/// Contract are divided among them.
class Dense {
 public:
  virtual ~Dense() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual at::Tensor forward(const at::Tensor& ids /*[B, S]*/, const Step& step) = 0;  ///< [B, S, H]
  virtual Parameter& weight() = 0;
};

/// Cuts images in patches and projects each, with a bias, behind class tokens that are learned. The weight is that of a
/// convolution, [H, C, patch, patch].
class PatchEmbedding {
 public:
  virtual ~PatchEmbedding() = default;
  /// [B, C, side, side] -> [B, class tokens + patches, H]
  virtual at::Tensor forward(const at::Tensor& images, const Step& step) = 0;
};

class Norm {
 public:
  virtual ~Norm() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

class Dropout {
 public:
  virtual ~Dropout() = default;
  /// x [B, S, H] -> x * mask / (1 - p) while training. The mask depends on the step's seed, the site's name and the
  /// logical index alone.
  virtual at::Tensor forward(const at::Tensor& x, const Step& step) = 0;
};

/// Projection to the vocabulary and cross entropy in one: the whole logits never exist in training.
class LossHead {
 public:
  virtual ~LossHead() = default;
  /// Scalar, the same on all ranks of the model: sum of the losses of the batch's tokens whose label is not -100 (fp32,
  /// or fp64 for fp64 models). The caller divides by the number of tokens of the whole global batch.
  virtual at::Tensor loss_sum(const at::Tensor& hidden /*[B, S, H]*/, const at::Tensor& labels /*[B, S]*/,
                              const Step& step) = 0;
  /// Scalar, int64, the same on all ranks of the model: how many of those labels are what the head finds most probable.
  /// Made of a few tokens at a time, as losses are.
  virtual at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const Step& step) = 0;
  /// Returns the logarithm of the probability of each label, [B, S] of the whole batch on every rank, in fp32 (fp64 in
  /// fp64 models), and 0 where a label is ignored. The arguments are those of loss_sum(), which is the negative sum.
  ///
  /// Differentiable. Each rank of the model computes the same loss from the result and calls backward() on it; the
  /// gradients are those of one such loss. If ranks split the sequence, the fields of step.batch have the tokens that
  /// this rank was given (SequenceCut::given), but the result has all. A field that the loss needs whole must be
  /// declared so (tensor::Field::stays_whole).
  /// Memory: logits exist for a slice of tokens at a time, and are computed again in backward.
  /// Cost:   one product more than loss_sum(), and slower passes over the logits.
  /// Errors: the caller checks the labels, before any communication.
  virtual at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& labels, const Step& step) = 0;
  /// Whole logits [B, S, V] of the whole batch on every rank, in the order of the sequence. `hidden` [..., H] is all
  /// that the rank has of the batch or, where no ranks split the sequence, any of its tokens: for decoding, where only
  /// the last position is asked for.
  virtual at::Tensor logits(const at::Tensor& hidden, const Step& step) = 0;
};

/// A few outputs of each token, such as predictions of a regression, rewards or values:
/// y [B, S, out] = x [B, S, H] W^T + b.
///
///   std::shared_ptr<nn::Outputs> values = layers.outputs("head.values", s.hidden, 1, {});
///   model.norm = [=](const at::Tensor& x, const nn::Step& step) { return values->forward(norm->forward(x), step); };
///
/// With this norm a loss reads the outputs as the end of the model, and the model needs no head.
class Outputs {
 public:
  virtual ~Outputs() = default;
  /// Takes all tokens that this rank has of the batch, and returns the outputs [B, S, out] of the whole batch on every
  /// rank. Differentiable: each rank of the model computes the same loss from the result and calls backward() on it;
  /// the gradients are those of one such loss.
  virtual at::Tensor forward(const at::Tensor& hidden, const Step& step) = 0;
};

/// Takes this rank's part of a field of step.batch, divided by the kinds of its dimensions like hidden states between
/// blocks. A dimension Token whose length is not that of the batch is divided evenly.
/// Errors ("parallel"): a length that does not divide; "model": a step without a batch, if the layout divides anything.
using FieldPart = std::function<at::Tensor(const tensor::Field& field, const Step& step)>;

struct LinearOptions {
  bool bias = true;
  double deviation = 0.02;  ///< of the initial weight; biases start at zero
  /// Segments of the split dimension (out of expand, in of contract); empty = one segment
  std::vector<tensor::Segment> segments{};
};

struct NormOptions {
  double epsilon = 1e-5;
  /// The factor of a feature is 1 + w, of a weight w that starts at 0 (Gemma); otherwise w, which starts at 1
  bool unit_offset = false;
  bool bias = true;  ///< of a LayerNorm; starts at 0

  double offset() const { return unit_offset ? 1 : 0; }
  Init init() const { return unit_offset ? Init::zeros() : Init::ones(); }
};

struct LmHeadOptions {
  double deviation = 0.02;    ///< of the initial weight
  Embedding* tied = nullptr;  ///< the head uses this embedding's weight and makes none of its own
  bool bias = false;          ///< one a word, that starts at zero
  double soft_cap = 0;        ///< logits become soft_cap tanh(logits / soft_cap) (Gemma 2); 0: they do not
};

/// The factory. Errors: every size is checked here, before any communication.
class Layers {
 public:
  explicit Layers(Parameters& parameters) : Layers(parameters, {}) {}
  virtual ~Layers() = default;

  /// A pair: expand gives each rank some of the `out` features, contract takes those features in and gives whole ones.
  /// Between the two only elementwise operations (within a segment position) are allowed.
  virtual std::unique_ptr<Expand> expand(const std::string& name, int64_t in, int64_t out, const LinearOptions&) = 0;
  virtual std::unique_ptr<Contract> contract(const std::string& name, int64_t in, int64_t out,
                                             const LinearOptions&) = 0;
  /// Makes such a pair around attention: whole heads out, heads [B, S, N_local * D] in.
  virtual std::unique_ptr<HeadProjection> heads(const std::string& name, const AttentionShape&,
                                                const LinearOptions&) = 0;
  /// Parameters `name`.q and `name`.kv. Errors ("model"): fewer kv heads than heads; "parallel": a layout that deals
  /// out the tokens of a row, of which the two hidden states are parts.
  virtual std::unique_ptr<CrossProjection> cross_heads(const std::string& name, const AttentionShape&,
                                                       const LinearOptions& q, const LinearOptions& kv) = 0;
  virtual std::unique_ptr<HeadTable> head_table(const std::string& name, int64_t rows, int64_t heads,
                                                double deviation) = 0;
  /// Between the two. Errors ("model"): a window or cap below 0.
  std::unique_ptr<Attention> attention(const std::string& name, const AttentionShape&, const AttentionOptions&);
  /// RMSNorm of each head of q or k by itself, x [.., N_local, D], with one weight [D] for all of them (Qwen3).
  virtual std::unique_ptr<Norm> head_norm(const std::string& name, int64_t head_dim, const NormOptions&) = 0;
  virtual std::unique_ptr<OutputProjection> from_heads(const std::string& name, const AttentionShape&,
                                                       const LinearOptions&) = 0;

  virtual std::unique_ptr<Embedding> embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                               double deviation) = 0;
  /// A table of learned positions, held whole.
  virtual std::unique_ptr<Embedding> positions(const std::string& name, int64_t length, int64_t hidden,
                                               double deviation) = 0;
  /// Parameters `name` and `class_token` [class tokens, H], of normal values with a deviation each.
  virtual std::unique_ptr<PatchEmbedding> patch_embedding(const std::string& name, const PatchShape&, int64_t hidden,
                                                          double deviation, const std::string& class_token,
                                                          double class_deviation) = 0;
  virtual std::unique_ptr<Norm> rms_norm(const std::string& name, int64_t hidden, const NormOptions&) = 0;
  virtual std::unique_ptr<Norm> layer_norm(const std::string& name, int64_t hidden, const NormOptions&) = 0;
  virtual std::unique_ptr<Dropout> dropout(const std::string& name, int64_t hidden, double probability) = 0;
  virtual std::unique_ptr<Dense> dense(const std::string& name, int64_t in, int64_t out, const LinearOptions&) = 0;
  virtual std::unique_ptr<LossHead> lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                            const LmHeadOptions&) = 0;
  /// Makes a head for a few classes, with a bias and not split over the classes. `hidden` [B, 1, H] is that of the
  /// first token that a rank has of each row; the hidden state of the row's first token counts.
  virtual std::unique_ptr<LossHead> classifier(const std::string& name, int64_t hidden, int64_t classes,
                                               double deviation) = 0;

  /// Makes the parameters `name`.weight [out, hidden] and `name`.bias [out]; no rank splits the outputs. At the end of
  /// a model `name` begins with "head." or "norm." (models/model.h). LinearOptions::segments is not used.
  /// Errors ("model"): `out` below 1.
  virtual std::unique_ptr<Outputs> outputs(const std::string& name, int64_t hidden, int64_t out,
                                           const LinearOptions&) = 0;

  /// For layers that read a field by themselves: `part(step.batch->field("weights"), step)` in their forward().
  virtual FieldPart field_part() const {
    return [](const tensor::Field& field, const Step&) { return field.tensor; };
  }

  /// Ranks among which the rows of a batch are dealt out: every B must divide by it.
  virtual int64_t batch_parts() const { return 1; }
  /// Returns true if the tokens of a row are split over ranks between blocks.
  virtual bool deals_out_tokens() const { return false; }
  Parameters& parameters() { return parameters_; }
  /// The reports of the model that is made. A layer declares its own in its constructor.
  Reports& reports() { return reports_; }

 protected:
  /// `split_axes`: axes along which the layout splits rows or tokens of hidden states.
  Layers(Parameters& parameters, const std::vector<std::string>& split_axes)
      : parameters_(parameters), reports_(parameters.place(), split_axes) {}
  /// attention(), of checked options. Attention layers are numbered in the order in which a model asks for them: a
  /// cache keeps keys and values by it.
  virtual std::unique_ptr<Attention> make_attention(int64_t layer, const AttentionShape& shape,
                                                    const AttentionOptions& options) {
    return whole_attention(layer, shape, options);
  }

 private:
  Parameters& parameters_;
  Reports reports_;
  int64_t attentions_ = 0;
};

}  // namespace colossal::nn
