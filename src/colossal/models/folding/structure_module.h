// The structure module of AlphaFold 2 and ESMFold (Jumper et al. 2021, supplement, algorithms 20, 22 and 23): from
// residues and pairs to a frame and seven angles for each residue.
//
//   const StructureModule structure("structure", {.points = {.single = 384, .pair = 128}}, make);
//   const std::vector<StructureLayer> layers = structure.forward(s, z, mask, step);
//   const ops::Rigid groups = ops::group_frames(layers.back().frames.rigid(), layers.back().angles, types, tables);
//   const at::Tensor places = ops::atoms14(groups, types, tables);                     // [B, N, 14, 3] in Angstrom
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/folding/point_attention.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/shared_dropout.h"
#include "colossal/ops/geometry/rigid.h"

namespace colossal::models {

/// Sizes of a structure module.
struct StructureSizes {
  PointAttentionSizes points{};
  int64_t layers = 8;          ///< how often the shared weights are applied
  int64_t transitions = 1;     ///< transitions of a layer, of three linear layers each
  int64_t angle_hidden = 128;  ///< features of the network of angles
  int64_t angle_blocks = 2;    ///< residual blocks of the network of angles
  double dropout = .1;
  double angstrom = 10;  ///< length of the unit in which the module computes translations
  bool operator==(const StructureSizes&) const = default;
};

/// The results of one layer. Gradients pass through the rotations of this layer's own update alone.
struct StructureLayer {
  at::Tensor s;                  ///< [B, N, single]
  ops::QuaternionFrames frames;  ///< [B, N] backbones, translations in Angstrom; fp32 at least
  at::Tensor raw_angles;         ///< [B, N, 7, 2] as computed, sine first
  at::Tensor angles;             ///< the same of length 1
};

/// The network that predicts angles (algorithm 20, lines 11 to 14).
///
/// Parameters: `name`.in, `name`.initial, `name`.blocks.N.{up,down}, `name`.out, each with weight and bias.
class AngleNetwork {
 public:
  AngleNetwork(const std::string& name, const StructureSizes& sizes, nn::Layers& make);
  /// Returns angles [B, N, 7, 2] of s and of s before the first layer, as computed.
  at::Tensor forward(const at::Tensor& s, const at::Tensor& initial) const;

 private:
  std::unique_ptr<nn::Dense> in_, initial_, out_;
  std::vector<std::unique_ptr<nn::Dense>> blocks_;  // two of each block
};

/// Layers with shared weights, each of point attention, transition, update of the frames and angles.
///
/// Parameters: `name`.norm_s, `name`.norm_z, `name`.in, `name`.points (PointAttention), `name`.norm_points,
///   `name`.transition.N.{0,1,2}, `name`.norm_transition, `name`.update, `name`.angles (AngleNetwork).
/// Numbers:  frames, points and angles are in fp32 at least, s and z in the dtype of the model.
/// Ranks:    every rank computes all residues, but point attention, which sends what PointAttention says.
/// Memory:   with gradients a normed copy of z; without, z is normed by rows in each layer.
class StructureModule {
 public:
  StructureModule(const std::string& name, const StructureSizes& sizes, nn::Layers& make);
  /// Returns the results of each layer for s [B, N, single] and z [B, N, N, pair], of the first N this rank's; mask [B,
  /// N]: 0 = padding, which no residue attends to.
  std::vector<StructureLayer> forward(const at::Tensor& s, const at::Tensor& z, const at::Tensor& mask,
                                      const nn::ForwardContext& step) const;
  const PointAttention& points() const { return points_; }
  const StructureSizes& sizes() const { return sizes_; }

 private:
  at::Tensor dropped(const at::Tensor& s, size_t place, const nn::ForwardContext& step) const;
  at::Tensor updated(const at::Tensor& s, const PairValues& pairs, const ops::Rigid& frames, const at::Tensor& mask,
                     size_t layer, const nn::ForwardContext& step) const;

  StructureSizes sizes_;
  std::unique_ptr<nn::Norm> norm_s_, norm_z_, norm_points_, norm_transition_;
  std::unique_ptr<nn::Dense> in_, update_;
  PointAttention points_;
  std::vector<std::unique_ptr<nn::Dense>> transitions_;  // three of each transition
  AngleNetwork angles_;
  std::vector<nn::SharedDropout> dropouts_;  // two of each layer: masks differ between layers
};

/// The results of all layers, as states of a model (FoldingHeads).
struct StackedLayers {
  at::Tensor structure;  ///< s of the last layer [B, N, single]
  at::Tensor frames;     ///< [B, L, N, 7]: unit quaternion and place in Angstrom
  at::Tensor angles;     ///< [B, L, N, 7, 2] as computed
};
StackedLayers stacked(const std::vector<StructureLayer>& layers);

/// Returns angles [..., 2] of length 1.
at::Tensor unit_angles(const at::Tensor& raw);

}  // namespace colossal::models
