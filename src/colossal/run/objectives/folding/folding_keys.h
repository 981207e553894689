// The keys of models that fold proteins. This header needs no LibTorch.
//
//   [folding]
//   crop = 256                   # residues of a training sample
//   clusters = 128               # rows of the clustered alignment
//   extra = 1024                 # further rows
//   weights = { fape = 0.5, side_chains = 0.5, distogram = 0.3 }
#pragma once
#include <cstdint>

#include "colossal/base/fields.h"

namespace colossal::run {

/// Name of the objective and of its table.
inline constexpr char kFolding[] = "folding";

/// Weights of the terms of the loss of a chain. 0 = the term is not computed.
struct FoldingWeights {
  double fape = .5, side_chains = .5, chi = 1, distogram = .3;
  double masked_msa = -1;  ///< -1 = 2 if the model has a head of letters, else 0
  double plddt = .01;
  double pae = -1;  ///< -1 = .1 if the model has a head of errors, else 0
  double resolved = 0, violation = 0;
  void fields(Fields& f);
  bool operator==(const FoldingWeights&) const = default;
};

/// The table [folding].
struct FoldingKeys {
  int64_t crop = 256, clusters = 128, extra = 1024;
  int64_t passes = 4;
  double clamp = .9;
  double masked = .15;
  double clip_sample = 0;  ///< 0 = off
  FoldingWeights weights{};
  void fields(Fields& f);
  bool operator==(const FoldingKeys&) const = default;
};

}  // namespace colossal::run
