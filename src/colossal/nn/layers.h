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
// Hidden states: a rank holds the part of B, S and H that the layout gives it (Tokens, and a run of features). A model
// must not take a size of a hidden state for the logical size. The tokens of a rank may differ from batch to batch, so
// every layer that depends on them is given the ForwardContext. A model passes on the ForwardContext that it was given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/tokens.h"
#include "colossal/tensor/batch.h"

namespace colossal::ops {
struct NormGroups;  // ops/group_norm.h
}

namespace colossal::nn {

class Attention;         // nn/attention.h
class AxialRanks;        // nn/axial_ranks.h
class AxisSwitch;        // nn/axis_switch.h
class ClipConvolution;   // nn/clips.h
class ClipNorm;          // nn/clips.h
class Contract;          // nn/linear_layers.h
class CrossProjection;   // nn/head_projections.h
class Dense;             // nn/linear_layers.h
class Dropout;           // nn/dropout.h
class Embedding;         // nn/embedding.h
class Expand;            // nn/linear_layers.h
class Experts;           // nn/experts.h
class Features;          // nn/features.h
class GroupNorm;         // nn/norm.h
class HeadProjection;    // nn/head_projections.h
class HeadTable;         // nn/head_projections.h
class LossHead;          // nn/loss_head.h
class Modulation;        // nn/modulation.h
class Neighbours;        // nn/neighbours.h
class Norm;              // nn/norm.h
class OutputProjection;  // nn/head_projections.h
class Outputs;           // nn/outputs.h
class PatchEmbedding;    // nn/patches.h
class PictureEmbedding;  // nn/convolution.h
class TokenRuns;         // nn/token_runs.h
class Vector;            // nn/vector.h
enum class Place : uint8_t;
struct AttentionOptions;
struct AttentionShape;
struct CausalOptions;
struct ExpertOptions;
struct LatentOptions;
struct LinearOptions;
struct LmHeadOptions;
struct NormOptions;
struct PatchShape;
struct Reach;
struct VectorOptions;

/// Returns this rank's part of a field of step.batch, sharded by the kinds of its dimensions like hidden states between
/// blocks. A dimension of kind Token whose length is not the length of the batch (frames, residues) is divided into
/// runs, one a rank, whose lengths differ by at most one.
/// Errors ("parallel"): rows or features that do not divide. Errors ("model"): a step without a batch, if the layout
/// divides anything.
using FieldPart = std::function<at::Tensor(const tensor::Field& field, const ForwardContext& step)>;

/// Returns the rows and tokens of the batch of a step of which this rank has the hidden states.
using OwnTokens = std::function<Tokens(const ForwardContext& step)>;

/// The factory of layers. A model includes the headers of the kinds of layers that it makes.
/// Errors: every size is checked when a layer is made, before any communication.
class Layers {
 public:
  explicit Layers(Parameters& parameters) : Layers(parameters, {}) {}
  virtual ~Layers();

  /// Makes one half of a pair: expand() gives each rank some of the `out` features; contract() takes those as its input
  /// and returns whole features. Between the two, only elementwise operations (within a segment position) are allowed.
  virtual std::unique_ptr<Expand> expand(const std::string& name, int64_t in, int64_t out, const LinearOptions&) = 0;
  virtual std::unique_ptr<Contract> contract(const std::string& name, int64_t in, int64_t out,
                                             const LinearOptions&) = 0;
  /// Makes the start of such a pair around attention: heads() returns whole heads, from_heads() takes their outputs
  /// [B, S, N_local * value_dim]. With LinearOptions::segments from_heads() also takes the features of an Expand, which
  /// they describe: it is the Contract of both.
  virtual std::unique_ptr<HeadProjection> heads(const std::string& name, const AttentionShape&,
                                                const LinearOptions&) = 0;
  /// Makes a projection to heads through latents (nn/latent_heads.h), with v of AttentionShape::value_dim() features.
  /// Errors ("model"): those of check_latents().
  virtual std::unique_ptr<HeadProjection> latent_heads(const std::string& name, const AttentionShape&,
                                                       const LatentOptions&) = 0;
  /// Makes the parameters `name`.q and `name`.kv. Ranks may split the tokens of the first hidden state; the second, the
  /// source, must be whole on each of them, such as the text of a picture.
  /// Errors ("model"): fewer kv heads than heads. Errors ("parallel"): tensor.sequence.
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
  std::unique_ptr<Embedding> positions(const std::string& name, int64_t length, int64_t hidden, double deviation);
  /// Makes the parameters `name` and `class_token` [class tokens, H], normal values with one standard deviation each.
  /// Without class tokens it makes only the first.
  std::unique_ptr<PatchEmbedding> patch_embedding(const std::string& name, const PatchShape&, int64_t hidden,
                                                  double deviation, const std::string& class_token,
                                                  double class_deviation);
  /// Makes a convolution of pictures (nn/convolution.h), with the initial weights of a normal distribution.
  std::unique_ptr<PictureEmbedding> picture_embedding(const std::string& name, int64_t channels, int64_t hidden,
                                                      int64_t kernel, double deviation);
  std::unique_ptr<Norm> rms_norm(const std::string& name, int64_t hidden, const NormOptions&);
  std::unique_ptr<Norm> layer_norm(const std::string& name, int64_t hidden, const NormOptions&);
  /// Makes a GroupNorm (ops/group_norm.h) of features in `place`, of which every rank has whole groups.
  /// Errors ("model"): groups that do not divide the features. Errors ("parallel"): ranks that would cut a group.
  std::unique_ptr<GroupNorm> group_norm(const std::string& name, int64_t features, const ops::NormGroups&, Place);
  /// Make layers of clips (nn/clips.h), of layouts whose ranks have whole clips and features.
  /// Errors ("model"): groups that do not divide the features.
  std::unique_ptr<ClipConvolution> causal_convolution(const std::string& name, int64_t in, int64_t out,
                                                      const CausalOptions&);
  std::unique_ptr<ClipNorm> clip_norm(const std::string& name, int64_t features, const ops::NormGroups&);
  std::unique_ptr<Dropout> dropout(const std::string& name, int64_t hidden, double probability);
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

  /// Make what layers consist of. A layer that uses only these, and the pairs above, runs in every layout. Vectors and
  /// features belong to hidden states, or to tensors between an Expand and its Contract (Place).
  /// Errors ("parallel"): a size of hidden states that the layout cannot divide.
  virtual std::unique_ptr<Vector> vector(const std::string& name, std::vector<int64_t> shape, const VectorOptions&) = 0;
  virtual std::shared_ptr<const Features> features(int64_t size, Place place) = 0;
  virtual std::shared_ptr<const TokenRuns> token_runs() = 0;
  /// Makes what finds the tokens before and after each token. Errors ("model"): a negative reach.
  std::shared_ptr<const Neighbours> neighbours(const Reach& reach);
  /// Returns the number of neighbours() made so far. A model with some remembers tokens when it generates
  /// (nn/token_memory.h).
  int64_t neighbour_layers() const { return neighbours_; }

  /// Returns the function that layers use in forward() to know which rows and tokens of the batch this rank has.
  virtual OwnTokens own_tokens() const;
  /// Returns the function that returns the rows and tokens that this rank has between an Expand and its Contract. It
  /// differs from own_tokens() if products gather or scatter tokens.
  virtual OwnTokens inside_tokens() const { return own_tokens(); }
  /// Returns the function that layers use in forward() to read a field directly: `part(step.batch->field("weights"),
  /// step)`.
  virtual FieldPart field_part() const;

  /// Returns the number of ranks over which the rows of a batch are split. Every B must be divisible by it.
  virtual int64_t batch_parts() const { return 1; }
  /// Returns true if the tokens of a row are split over ranks between blocks.
  virtual bool splits_tokens() const { return false; }

  /// Makes the parameters `name`.weight [count * hidden, hidden] and `name`.bias, which start at 0: `count` vectors of
  /// a conditioning vector. Errors ("model"): `count` below 1.
  virtual std::unique_ptr<Modulation> modulation(const std::string& name, int64_t hidden, int64_t count) = 0;
  /// Makes what moves the split of a hidden state with two axes from one axis to the other.
  virtual std::shared_ptr<const AxisSwitch> axis_switch() const;
  /// Returns the ranks that share the representations of a folding model.
  virtual std::shared_ptr<const AxialRanks> axial_ranks() const;

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
                                                    const AttentionOptions& options);

 private:
  Parameters& parameters_;
  Reports reports_;
  int64_t attentions_ = 0, neighbours_ = 0;
};

}  // namespace colossal::nn
