// The parts of ESMFold that only it has: what its language model reads, and how the trunk starts.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/esm2_layers.h"
#include "colossal/models/folding/esmfold_sizes.h"
#include "colossal/models/model.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/vector.h"

namespace colossal::models::esmfold {

/// Indices of Model::states.
enum : int {
  kHidden,     ///< hidden state of ESM-2 [B, N + 2, hidden], with <cls> and <eos>
  kShares,     ///< shares of the hidden states in their sum [B, language layers + 1], fp32 at least
  kMixed,      ///< their sum so far [B, N, hidden], fp32 at least
  kLanguage,   ///< what the trunk reads of the chain [B, N, single]
  kSingle,     ///< s [B, N, single]
  kPair,       ///< z [B, N, N, pair]
  kStructure,  ///< [B, N, structure], after the last layer of the structure module
  kFrames,     ///< [B, L, N, 7]
  kAngles,     ///< [B, L, N, 7, 2]
  kStateCount,
};

/// Returns true if the pass reads the field `language_states`, so that ESM-2 does nothing. Its hidden states then have
/// one token, of zeros.
bool has_language(const nn::ForwardContext& step);

/// Returns the states of a model with these sizes, whose parameters have that dtype.
std::vector<State> states_of(const ModelShape& shape, at::ScalarType dtype);

/// The embedding of ESM-2, and the shares of its hidden states in what the trunk reads (`esm_s_combine`).
class LanguageStart {
 public:
  /// Makes the parameters embedding.weight and language.shares.
  LanguageStart(const ModelShape& shape, nn::Layers& make);
  /// Writes the first three states.
  void forward(States& states, const tensor::Batch& batch, const nn::ForwardContext& step) const;

 private:
  at::Tensor ids(const tensor::Batch& batch) const;

  std::shared_ptr<const nn::AxialRanks> ranks_;
  EsmfoldSizes own_;
  int64_t hidden_;
  at::Tensor ids_of_types_;  // on the device of the model
  Esm2Embedding embedding_;
  std::unique_ptr<nn::Vector> shares_;
};

/// A layer of ESM-2. After the last one a norm follows, whose result takes the place of the hidden state in the sum.
class LanguageBlock {
 public:
  LanguageBlock(const ModelShape& shape, int64_t layer, nn::Layers& make);
  /// Changes kHidden and kMixed.
  void forward(States& states, const nn::ForwardContext& step) const;

 private:
  int64_t layer_;
  Esm2WholeBlock block_;
  std::unique_ptr<nn::Norm> norm_after_;  // of the last layer
};

/// The start of the trunk: what it reads of the chain, and the results of the pass before.
class TrunkStart {
 public:
  TrunkStart(const ModelShape& shape, const std::string& name, nn::Layers& make);
  /// Writes kLanguage, kSingle and kPair from kMixed.
  void forward(States& states, const nn::ForwardContext& step) const;

 private:
  at::Tensor language(const at::Tensor& mixed, const nn::ForwardContext& step) const;
  at::Tensor pairs(const tensor::Batch& batch, const nn::ForwardContext& step) const;

  std::shared_ptr<const nn::AxialRanks> ranks_;
  int64_t position_bins_;
  at::ScalarType dtype_;
  std::unique_ptr<nn::Norm> norm_, single_norm_, pair_norm_;
  std::unique_ptr<nn::Dense> up_, down_;
  std::unique_ptr<nn::Vector> types_, distances_, positions_;
};

/// The structure module, with the layers before it.
class StructureEnd {
 public:
  StructureEnd(const ModelShape& shape, const std::string& name, nn::Layers& make);
  /// Writes kStructure, kFrames and kAngles from kSingle and kPair.
  void forward(States& states, const nn::ForwardContext& step) const;

 private:
  std::unique_ptr<nn::Dense> single_, pair_;
  StructureModule module_;
};

}  // namespace colossal::models::esmfold
