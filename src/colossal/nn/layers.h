// The factory from which a model gets its layers. A model is written as if for one process. Each factory decides how
// its layers are sharded and attaches the ShardSpec. SerialLayers shards nothing and is the reference that tests
// compare with. Runs use parallel::TensorLayers, with a layout of one rank or of many.
//
//   struct Mlp {
//     explicit Mlp(nn::Layers& make)
//         : norm(make.layer_norm("mlp.norm", 64, {.epsilon = 1e-5})),
//           up(make.expand("mlp.up", 64, 256, {})),
//           down(make.contract("mlp.down", 256, 64, {})) {}
//     at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) {
//       return x + down->forward(up->forward(norm->forward(x)).map(ops::gelu, step));
//     }
//     std::unique_ptr<nn::Norm> norm;
//     std::unique_ptr<nn::Expand> up;
//     std::unique_ptr<nn::Contract> down;
//   };
//
// Legend of shapes: B batch, S sequence, H hidden, N heads, D head_dim, V vocabulary. All sizes given to the factory
// are logical.
//
// Fields: the fields of a micro-batch (ForwardContext::batch) are whole and the same on all ranks of the model. The
// exception is a rank that is given only some of their tokens (SequenceCut::given). Embeddings and heads select this
// rank's part of a field; other layers use field_part().
//
// Hidden states: a rank holds the part of B, S and H that the layout gives it (Tokens, and a run of features). A model
// must not take a size of a hidden state for the logical size. The tokens of a rank may differ from batch to batch, so
// every layer that depends on them is given the ForwardContext. A model passes on the ForwardContext that it was given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/segments.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/tokens.h"
#include "colossal/tensor/batch.h"

namespace colossal::nn {

class BatchDocuments;  // nn/batch_documents.h
class KeptChoices;     // nn/expert_choice.h
class InputStore;      // nn/input_store.h

/// Inputs of a forward pass in addition to the hidden state. step_of() (nn/batch_step.h) makes a ForwardContext from a
/// micro-batch.
struct ForwardContext {
  at::Tensor positions;  ///< [B, S] int64, for the whole batch like `documents`; each layer selects its tokens
  /// [B, S] int64, the document of each token. A token attends only inside its own document; undefined = one document
  /// per row. Must not be set together with a cache, because it does not describe the cached tokens (Error "model");
  /// set `sequences` in that case
  at::Tensor documents;
  /// The micro-batch. Embedding, blocks and head of every pipeline stage may read its fields, so a constant input is
  /// never sent from stage to stage. `positions` and `documents` are two of its fields. Null only when single layers
  /// are called
  std::shared_ptr<const tensor::Batch> batch{};
  /// Cache of what layers compute from `documents`, shared by all layers of the pass; null = each layer computes it
  std::shared_ptr<BatchDocuments> known_documents{};
  /// How rows are split into sequences that do not attend to each other, e.g. prompts of unequal lengths in one row
  Sequences sequences{};
  /// Keys and values of earlier tokens, for decoding: attention reads them too and appends those of this step. Null =
  /// no cache
  AttentionCache* cache = nullptr;
  bool training = false;  ///< true = dropout is on
  /// One seed per step, the same on all ranks; micro-batches and replicas differ in first_row
  uint64_t dropout_seed = 0;
  Recompute recompute = Recompute::None;  ///< activations that a training pass recomputes in backward
  /// Blocks of this rank that a training pass recomputes together, with Recompute::None; null = none. Numbers are those
  /// of the model's blocks, and a segment lies within one stage
  std::shared_ptr<const Segments> segments{};
  /// Storage for the inputs of recomputed blocks (of segments: those on the host) between forward and backward; null =
  /// they stay where they are
  std::shared_ptr<InputStore> inputs{};
  /// Collects the values that layers report; null = nothing is reported and no loss term is attached, as in evaluation
  std::shared_ptr<ReportAccumulator> reports{};
  /// Choices of the mixtures of a block, which its second pass uses again; null = the block is not recomputed
  std::shared_ptr<KeptChoices> choices{};
  bool is_recomputed = false;  ///< true = later pass of a recomputed block, which reports nothing
  /// Index in the global batch of this batch's first row; its rows are consecutive (tensor::ReplicaRows). Dropout masks
  /// depend on it, because they are drawn by logical index
  int64_t first_row = 0;
  /// True if the hidden states have one token per row, the class token, whichever rank holds it. Dropout then numbers
  /// rows only
  bool is_class_token = false;
  /// How this batch's sequence is split over ranks, and which of its runs this rank was given. Null = equal runs, one
  /// per rank, and each rank is given the whole sequence. distributed::DistributedModel sets it from the layout of the
  /// layers (parallel::Layout::with_cut). It is read only by layers
  std::shared_ptr<const SequenceCut> cut{};
  /// Number of tokens at the start of each row that the encoder reads, for a model with an encoder. 0 = the encoder
  /// read them in an earlier step, and `cache` holds what the decoder needs of them. Empty = the number that the
  /// model's shape says (models::Task::source_of)
  std::optional<int64_t> source_tokens{};

  /// Reports a value of this micro-batch, without a gradient. It is joined with the values of other micro-batches and
  /// ranks as declared.
  /// Errors ("model"): a report that was not declared; another number of elements than declared.
  void report(const Report& what, const at::Tensor& value) const;
  /// Reports the scalar `loss` and returns y, a hidden state, which must not be changed in place afterwards. Backward
  /// through y also goes through `loss`, with the gradient of (weight of the term) x (joined value), under every
  /// layout. The loss of the model must depend on y.
  /// Errors ("model"): a report that was not declared by add_loss(); a loss that is not one fp32 or fp64 number.
  at::Tensor attach_loss(const Report& term, const at::Tensor& loss, const at::Tensor& y) const;
};

/// An activation between an Expand and its Contract. Its features are sharded differently from those outside, and under
/// some layouts its rows too, even if the sizes match the sizes of a residual. It is a type of its own so that it
/// cannot be added to a residual: an Expand without its Contract does not compile.
struct Inside {
  at::Tensor tensor;
  /// Function that the Contract applies first and computes again in backward, so that its result is not kept; empty =
  /// none
  Unary pending{};
  /// Applies an elementwise operation. With Recompute::Selective in training, the Contract applies it later
  /// (`pending`).
  Inside map(const Unary& operation, const ForwardContext& step) const {
    if (step.training && step.recompute == Recompute::Selective) return {tensor, operation};
    return {operation(tensor)};
  }
};

/// Linear layer from outside to inside: y [.., out] = x [B, S, in] Wt + bias. Under some layouts a rank has more
/// tokens, or other tokens, inside than outside.
class Expand {
 public:
  virtual ~Expand() = default;
  virtual Inside forward(const at::Tensor& x) = 0;
};

/// Linear layer from inside back to outside: y [B, S, out] = x [.., in] Wt + bias, where x is the output of an Expand.
class Contract {
 public:
  virtual ~Contract() = default;
  virtual at::Tensor forward(const Inside& x) = 0;
};

/// The fused q, k, v projection. A rank gets whole heads of q, k and v, with the tokens in the order of the sequence.
class HeadProjection {
 public:
  virtual ~HeadProjection() = default;
  virtual Heads forward(const at::Tensor& x /*[B, S, H]*/, const ForwardContext& step) = 0;
};

/// The projections of two hidden states: q from one, k and v from the other. Both may be the same state, for q with
/// other initial weights than k and v. A source without tokens costs nothing and gives no keys.
class CrossProjection {
 public:
  virtual ~CrossProjection() = default;
  virtual Heads forward(const at::Tensor& x /*[B, T, H]*/, const at::Tensor& source /*[B, S, H]*/,
                        const ForwardContext& step) = 0;
};

/// A table of values per head, in rows that many blocks look up, such as the learned relative positions added to
/// scores.
class HeadTable {
 public:
  virtual ~HeadTable() = default;
  virtual at::Tensor forward() = 0;  ///< [rows, N_local]: the columns of this rank's heads
};

/// Projection from the heads of an Attention back to outside: y [B, S, out] = x [.., N_local * D] Wt + bias.
class OutputProjection {
 public:
  virtual ~OutputProjection() = default;
  virtual at::Tensor forward(const Inside& x, const ForwardContext& step) = 0;
};

/// y [..., out] = x [..., in] W^T + b, where the features of y are sharded like the features of x, as between blocks.
/// Use it only at the ends of a model: all ranks that hold the same hidden states compute the same products. An Expand
/// and a Contract divide their products among those ranks.
class Dense {
 public:
  virtual ~Dense() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// A table with one learned vector per id.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual at::Tensor forward(const at::Tensor& ids /*[B, S]*/, const ForwardContext& step) = 0;  ///< [B, S, H]
  virtual Parameter& weight() = 0;
};

/// Cuts images into patches, projects each patch with a bias, and puts learned class tokens before them. The weight has
/// the shape of a convolution's, [H, C, patch, patch].
class PatchEmbedding {
 public:
  virtual ~PatchEmbedding() = default;
  /// [B, C, side, side] -> [B, class tokens + patches, H].
  virtual at::Tensor forward(const at::Tensor& images, const ForwardContext& step) = 0;
};

/// A normalization over the features of each token or head.
class Norm {
 public:
  virtual ~Norm() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// Dropout whose masks are the same under every layout.
class Dropout {
 public:
  virtual ~Dropout() = default;
  /// Returns x [B, S, H] * mask / (1 - p) while training, otherwise x. The mask depends only on the step's seed, the
  /// layer's name and the logical index of the element.
  virtual at::Tensor forward(const at::Tensor& x, const ForwardContext& step) = 0;
};

/// Projection to the vocabulary fused with cross entropy. Training never holds the logits of all tokens at once.
class LossHead {
 public:
  virtual ~LossHead() = default;
  /// Returns a scalar, the same on all ranks of the model: the sum of the losses of the batch's tokens whose label is
  /// not -100. It is fp32, or fp64 for fp64 models. The caller divides by the number of tokens of the whole global
  /// batch.
  virtual at::Tensor loss_sum(const at::Tensor& hidden /*[B, S, H]*/, const at::Tensor& labels /*[B, S]*/,
                              const ForwardContext& step) = 0;
  /// Returns an int64 scalar, the same on all ranks of the model: the number of labels other than -100 that the head
  /// finds most probable. Computed a slice of tokens at a time, as losses are.
  virtual at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext& step) = 0;
  /// Returns the logarithm of the probability of each label, [B, S] of the whole batch on every rank. It is fp32 (fp64
  /// in fp64 models), and 0 where a label is ignored. The arguments are those of loss_sum(), whose result is the
  /// negative sum of these values.
  ///
  /// Gradients: differentiable. Each rank of the model computes the same loss from the result and calls backward() on
  ///            it; the gradients are those of one such loss.
  /// Shapes: if ranks split the sequence, the fields of step.batch have only the tokens that this rank was given
  ///         (SequenceCut::given), but the result has all. A field that the loss needs whole must be declared so
  ///         (tensor::Field::stays_whole).
  /// Memory: logits exist for one slice of tokens at a time, and are computed again in backward.
  /// Cost:   one product more than loss_sum(), and slower passes over the logits.
  /// Errors: none for bad labels; the caller checks the labels before any communication.
  virtual at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& labels,
                                       const ForwardContext& step) = 0;
  /// Returns the logits [B, S, V] of the whole batch on every rank, in the order of the sequence. `hidden` [..., H] is
  /// everything that the rank has of the batch. If no ranks split the sequence, `hidden` may have fewer tokens, because
  /// decoding needs only the last position.
  virtual at::Tensor logits(const at::Tensor& hidden, const ForwardContext& step) = 0;
};

/// A projection to a few outputs per token, such as predictions of a regression, rewards or values:
/// y [B, S, out] = x [B, S, H] W^T + b.
///
///   std::shared_ptr<nn::Outputs> values = layers.outputs("head.values", s.hidden, 1, {});
///   model.norm = [=](const at::Tensor& x, const nn::ForwardContext& step) {
///     return values->forward(norm->forward(x), step);
///   };
///
/// With this norm a loss reads the outputs as the end of the model, and the model needs no head.
class Outputs {
 public:
  virtual ~Outputs() = default;
  /// Takes all tokens that this rank has of the batch and returns the outputs [B, S, out] of the whole batch on every
  /// rank. Differentiable: each rank of the model computes the same loss from the result and calls backward() on it;
  /// the gradients are those of one such loss.
  virtual at::Tensor forward(const at::Tensor& hidden, const ForwardContext& step) = 0;
};

/// Returns this rank's part of a field of step.batch, sharded by the kinds of its dimensions like hidden states between
/// blocks. A dimension of kind Token whose length is not the length of the batch is divided evenly.
/// Errors ("parallel"): a length that does not divide. Errors ("model"): a step without a batch, if the layout divides
/// anything.
using FieldPart = std::function<at::Tensor(const tensor::Field& field, const ForwardContext& step)>;

/// Options of a linear layer.
struct LinearOptions {
  bool bias = true;
  double deviation = 0.02;  ///< standard deviation of the initial weight; biases start at zero
  /// Segments of the split dimension (out of an Expand, in of a Contract or a Dense); empty = one segment
  std::vector<tensor::Segment> segments{};
};

/// Options of a LayerNorm or RMSNorm.
struct NormOptions {
  double epsilon = 1e-5;
  /// True: a feature is multiplied by 1 + w, where w starts at 0 (Gemma). False: by w, which starts at 1
  bool unit_offset = false;
  bool bias = true;  ///< whether a LayerNorm has a bias, which starts at 0

  double offset() const { return unit_offset ? 1 : 0; }
  Init init() const { return unit_offset ? Init::zeros() : Init::ones(); }
};

/// Options of the head of a language model.
struct LmHeadOptions {
  double deviation = 0.02;    ///< standard deviation of the initial weight
  Embedding* tied = nullptr;  ///< embedding whose weight the head uses instead of its own; null = not tied
  bool bias = false;          ///< one bias per token of the vocabulary, starting at zero
  double soft_cap = 0;        ///< logits become soft_cap tanh(logits / soft_cap) (Gemma 2); 0 = off
};

/// The factory of layers. Errors: every size is checked when a layer is made, before any communication.
class Layers {
 public:
  explicit Layers(Parameters& parameters) : Layers(parameters, {}) {}
  virtual ~Layers() = default;

  /// Makes one half of a pair: expand() gives each rank some of the `out` features; contract() takes those as its input
  /// and returns whole features. Between the two, only elementwise operations (within a segment position) are allowed.
  virtual std::unique_ptr<Expand> expand(const std::string& name, int64_t in, int64_t out, const LinearOptions&) = 0;
  virtual std::unique_ptr<Contract> contract(const std::string& name, int64_t in, int64_t out,
                                             const LinearOptions&) = 0;
  /// Makes the start of such a pair around attention: heads() returns whole heads, from_heads() takes their outputs
  /// [B, S, N_local * value_dim].
  virtual std::unique_ptr<HeadProjection> heads(const std::string& name, const AttentionShape&,
                                                const LinearOptions&) = 0;
  /// Makes a projection to heads through latents (nn/latent_heads.h), with v of AttentionShape::value_dim() features.
  /// Errors ("model"): those of check_latents().
  virtual std::unique_ptr<HeadProjection> latent_heads(const std::string& name, const AttentionShape&,
                                                       const LatentOptions&) = 0;
  /// Makes the parameters `name`.q and `name`.kv.
  /// Errors ("model"): fewer kv heads than heads. Errors ("parallel"): a layout that splits the tokens of a row,
  /// because the two hidden states are parts of one row.
  virtual std::unique_ptr<CrossProjection> cross_heads(const std::string& name, const AttentionShape&,
                                                       const LinearOptions& q, const LinearOptions& kv) = 0;
  virtual std::unique_ptr<HeadTable> head_table(const std::string& name, int64_t rows, int64_t heads,
                                                double deviation) = 0;
  /// Makes the attention between heads() and from_heads(). Values with fewer features than keys are padded with zeros,
  /// in caches too, and the results are cut. Errors ("model"): a window or soft_cap below 0; values with more features
  /// than keys.
  std::unique_ptr<Attention> attention(const std::string& name, const AttentionShape&, const AttentionOptions&);
  /// Makes an RMSNorm of each head of q or k separately, x [.., N_local, D], with one weight [D] for all heads (Qwen3).
  virtual std::unique_ptr<Norm> head_norm(const std::string& name, int64_t head_dim, const NormOptions&) = 0;
  virtual std::unique_ptr<OutputProjection> from_heads(const std::string& name, const AttentionShape&,
                                                       const LinearOptions&) = 0;

  /// Makes a mixture of experts (nn/experts.h). Errors ("experts"): those of check_options().
  virtual std::unique_ptr<Experts> experts(const std::string& name, int64_t hidden, const ExpertOptions&) = 0;

  virtual std::unique_ptr<Embedding> embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                               double deviation) = 0;
  /// Makes a table of learned positions. In forward every rank has all `length` rows; it has the features that it has
  /// of hidden states.
  virtual std::unique_ptr<Embedding> positions(const std::string& name, int64_t length, int64_t hidden,
                                               double deviation) = 0;
  /// Makes the parameters `name` and `class_token` [class tokens, H], normal values with one standard deviation each.
  virtual std::unique_ptr<PatchEmbedding> patch_embedding(const std::string& name, const PatchShape&, int64_t hidden,
                                                          double deviation, const std::string& class_token,
                                                          double class_deviation) = 0;
  virtual std::unique_ptr<Norm> rms_norm(const std::string& name, int64_t hidden, const NormOptions&) = 0;
  virtual std::unique_ptr<Norm> layer_norm(const std::string& name, int64_t hidden, const NormOptions&) = 0;
  virtual std::unique_ptr<Dropout> dropout(const std::string& name, int64_t hidden, double probability) = 0;
  virtual std::unique_ptr<Dense> dense(const std::string& name, int64_t in, int64_t out, const LinearOptions&) = 0;
  virtual std::unique_ptr<LossHead> lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                            const LmHeadOptions&) = 0;
  /// Makes a head for a few classes, with a bias, not split over the classes. Its argument `hidden` [B, 1, H] is the
  /// hidden state of the first token that a rank has of each row. The result is computed from the first token of the
  /// whole row.
  virtual std::unique_ptr<LossHead> classifier(const std::string& name, int64_t hidden, int64_t classes,
                                               double deviation) = 0;

  /// Makes the parameters `name`.weight [out, hidden] and `name`.bias [out]; no rank splits the outputs. At the end of
  /// a model, `name` begins with "head." or "norm." (models/model.h). LinearOptions::segments is not used.
  /// Errors ("model"): `out` below 1.
  virtual std::unique_ptr<Outputs> outputs(const std::string& name, int64_t hidden, int64_t out,
                                           const LinearOptions&) = 0;

  /// Returns the function that layers use in forward() to read a field directly: `part(step.batch->field("weights"),
  /// step)`.
  virtual FieldPart field_part() const {
    return [](const tensor::Field& field, const ForwardContext&) { return field.tensor; };
  }

  /// Returns the number of ranks over which the rows of a batch are split. Every B must be divisible by it.
  virtual int64_t batch_parts() const { return 1; }
  /// Returns true if the tokens of a row are split over ranks between blocks.
  virtual bool splits_tokens() const { return false; }
  Parameters& parameters() { return parameters_; }
  /// The reports of the model under construction. A layer declares its reports in its constructor.
  Reports& reports() { return reports_; }

 protected:
  /// `split_axes`: axes along which the layout splits rows or tokens of hidden states.
  Layers(Parameters& parameters, const std::vector<std::string>& split_axes)
      : parameters_(parameters), reports_(parameters.coordinates(), split_axes) {}
  /// Makes the layer for attention(), whose options have been checked. `layer` counts the attention layers in the order
  /// in which a model makes them; a cache stores keys and values by this number.
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
