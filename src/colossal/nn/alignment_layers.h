// Layers of an alignment representation m [B, S, N, c_m] of S rows and N residues, as in AlphaFold 2 (Jumper et al.
// 2021, supplement, algorithms 7, 8, 10 and 19). Parameters have the names of OpenFold behind `name`.
//
// Ranks may cut m (nn/axial_ranks.h): row attention has some rows of it, the other layers some residues. Masks are
// whole on every rank.
//
//   m = m + row.forward(m, z, mask);                    // mask [B, S, N], 0 for gaps that take no part; or undefined
//   m = m + column.forward(m, mask);
//   z = z + outer.forward(m, mask, n);                  // [B, N, N, c_z]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/gated_attention.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/vector.h"

namespace colossal::nn {

/// Attention along the residues of each row, with a bias of the pair that all rows share. A rank has rows of m and of
/// z.
/// Communication: AxialRanks::gathered() of the bias, N N heads.
class RowAttention {
 public:
  RowAttention(Layers& make, const std::string& name, int64_t features, int64_t pair_features, const GatedHeads& heads);
  at::Tensor forward(const at::Tensor& m, const at::Tensor& z, const at::Tensor& mask) const;

 private:
  std::shared_ptr<const AxialRanks> ranks_;
  std::unique_ptr<Norm> norm_m_, norm_z_;
  std::unique_ptr<Dense> bias_;
  GatedAttention attention_;
};

/// Attention along the rows, for each residue.
class ColumnAttention {
 public:
  ColumnAttention(Layers& make, const std::string& name, int64_t features, const GatedHeads& heads);
  at::Tensor forward(const at::Tensor& m, const at::Tensor& mask) const;

 private:
  std::shared_ptr<const AxialRanks> ranks_;
  std::unique_ptr<Norm> norm_;
  GatedAttention attention_;
};

/// Global attention along the rows, for alignments of many rows.
class GlobalColumnAttention {
 public:
  GlobalColumnAttention(Layers& make, const std::string& name, int64_t features, const GatedHeads& heads);
  at::Tensor forward(const at::Tensor& m, const at::Tensor& mask) const;

 private:
  std::shared_ptr<const AxialRanks> ranks_;
  std::unique_ptr<Norm> norm_;
  GlobalAttention attention_;
};

/// Mean over rows of the outer products of two residues: m -> what is added to z. It is divided by the number of rows
/// that have both residues plus 1e-3, after the last linear layer and its bias. A rank gives the rows of z of its
/// residues.
/// Communication: AxialRanks::gathered() of one side, S N hidden.
class OuterProduct {
 public:
  OuterProduct(Layers& make, const std::string& name, int64_t features, int64_t pair_features, int64_t hidden);
  /// `residues`: N, of which m has those of this rank.
  at::Tensor forward(const at::Tensor& m, const at::Tensor& mask, int64_t residues) const;

 private:
  std::shared_ptr<const AxialRanks> ranks_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Dense> left_, right_;
  std::unique_ptr<Vector> weight_, bias_;
};

}  // namespace colossal::nn
