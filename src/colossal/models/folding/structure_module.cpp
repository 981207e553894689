#include "colossal/models/folding/structure_module.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "colossal/ops/activation.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/geometry/residue_tables.h"

namespace colossal::models {
namespace {

constexpr double kTinyAngle = 1e-12;  // smallest squared length by which angles are divided

at::Tensor rectified_values(const at::Tensor& x) { return ops::activation("relu").plain(x); }

/// Returns the layer of the same number of features, with an initial weight that keeps the size of rectified inputs.
std::unique_ptr<nn::Dense> hidden_layer(const std::string& name, int64_t size, nn::Layers& make) {
  return make.dense(name, size, size, {.deviation = std::sqrt(2. / static_cast<double>(size))});
}

std::unique_ptr<nn::Dense> plain_layer(const std::string& name, int64_t in, int64_t out, nn::Layers& make) {
  return make.dense(name, in, out, {.deviation = 1 / std::sqrt(static_cast<double>(in))});
}

std::unique_ptr<nn::Dense> zero_layer(const std::string& name, int64_t in, int64_t out, nn::Layers& make) {
  return make.dense(name, in, out, {.deviation = 0});
}

}  // namespace

StackedLayers stacked(const std::vector<StructureLayer>& layers) {
  std::vector<at::Tensor> frames, angles;
  for (const StructureLayer& layer : layers) {
    frames.push_back(at::cat({layer.frames.quaternion, layer.frames.translation}, -1));
    angles.push_back(layer.raw_angles);
  }
  return {layers.back().s, at::stack(frames, 1), at::stack(angles, 1)};
}

at::Tensor unit_angles(const at::Tensor& raw) {
  const at::Tensor square = ops::squared_norm(raw);
  return raw / square.masked_fill(square < kTinyAngle, kTinyAngle).sqrt().unsqueeze(-1);
}

AngleNetwork::AngleNetwork(const std::string& name, const StructureSizes& sizes, nn::Layers& make)
    : in_(plain_layer(name + ".in", sizes.points.single, sizes.angle_hidden, make)),
      initial_(plain_layer(name + ".initial", sizes.points.single, sizes.angle_hidden, make)) {
  for (int64_t i = 0; i < sizes.angle_blocks; ++i) {
    const std::string block = name + ".blocks." + std::to_string(i);
    blocks_.push_back(hidden_layer(block + ".up", sizes.angle_hidden, make));
    blocks_.push_back(zero_layer(block + ".down", sizes.angle_hidden, sizes.angle_hidden, make));
  }
  out_ = plain_layer(name + ".out", sizes.angle_hidden, 2 * ops::kTorsions, make);
}

at::Tensor AngleNetwork::forward(const at::Tensor& s, const at::Tensor& initial) const {
  at::Tensor x = in_->forward(rectified_values(s)) + initial_->forward(rectified_values(initial));
  for (size_t i = 0; i < blocks_.size(); i += 2)
    x = x + blocks_[i + 1]->forward(rectified_values(blocks_[i]->forward(rectified_values(x))));
  return out_->forward(rectified_values(x)).unflatten(-1, at::IntArrayRef{ops::kTorsions, 2});
}

StructureModule::StructureModule(const std::string& name, const StructureSizes& sizes, nn::Layers& make)
    : sizes_(sizes),
      norm_s_(make.layer_norm(name + ".norm_s", sizes.points.single, {})),
      norm_z_(make.layer_norm(name + ".norm_z", sizes.points.pair, {})),
      norm_points_(make.layer_norm(name + ".norm_points", sizes.points.single, {})),
      norm_transition_(make.layer_norm(name + ".norm_transition", sizes.points.single, {})),
      in_(plain_layer(name + ".in", sizes.points.single, sizes.points.single, make)),
      update_(zero_layer(name + ".update", sizes.points.single, 6, make)),
      points_(name + ".points", sizes.points, make),
      angles_(name + ".angles", sizes, make) {
  const int64_t single = sizes.points.single;
  for (int64_t i = 0; i < sizes.transitions; ++i) {
    const std::string transition = name + ".transition." + std::to_string(i);
    transitions_.push_back(hidden_layer(transition + ".0", single, make));
    transitions_.push_back(hidden_layer(transition + ".1", single, make));
    transitions_.push_back(zero_layer(transition + ".2", single, single, make));
  }
  for (int64_t i = 0; i < sizes.layers; ++i)
    for (const char* place : {".points", ".transition"})
      dropouts_.emplace_back(make, name + ".layers." + std::to_string(i) + place + ".dropout", sizes.dropout,
                             nn::AttendedAxis::First);
}

/// Returns s [B, N, single], which every rank has whole, with dropout.
at::Tensor StructureModule::dropped(const at::Tensor& s, size_t place, const nn::ForwardContext& step) const {
  return dropouts_[place].forward(s.unsqueeze(1), step, s.size(1)).squeeze(1);
}

/// Returns s after point attention and transition.
at::Tensor StructureModule::updated(const at::Tensor& s, const PairValues& pairs, const ops::Rigid& frames,
                                    const at::Tensor& mask, size_t layer, const nn::ForwardContext& step) const {
  const at::Tensor attended = s + points_.forward(s, pairs, frames, mask);
  at::Tensor x = norm_points_->forward(dropped(attended, 2 * layer, step));
  for (size_t i = 0; i < transitions_.size(); i += 3) {
    const at::Tensor up = rectified_values(transitions_[i]->forward(x));
    x = x + transitions_[i + 2]->forward(rectified_values(transitions_[i + 1]->forward(up)));
  }
  return norm_transition_->forward(dropped(x, 2 * layer + 1, step));
}

std::vector<StructureLayer> StructureModule::forward(const at::Tensor& s, const at::Tensor& z, const at::Tensor& mask,
                                                     const nn::ForwardContext& step) const {
  const auto wide = s.options().dtype(ops::wide_type(s));
  const at::Tensor initial = norm_s_->forward(s);
  const PairValues pairs =
      at::GradMode::is_enabled() ? PairValues{.values = norm_z_->forward(z)} : PairValues{z, norm_z_.get()};
  at::Tensor x = in_->forward(initial);
  ops::QuaternionFrames frames = ops::QuaternionFrames::identity(s.sizes().slice(0, 2), wide);
  std::vector<StructureLayer> layers;
  for (int64_t i = 0; i < sizes_.layers; ++i) {
    x = updated(x, pairs, frames.rigid(), mask, static_cast<size_t>(i), step);
    frames = frames.updated(update_->forward(x).to(wide));
    const at::Tensor raw = angles_.forward(x, initial).to(wide);
    layers.push_back({x, {frames.quaternion, frames.translation * sizes_.angstrom}, raw, unit_angles(raw)});
    frames = frames.with_fixed_rotations();
  }
  return layers;
}

}  // namespace colossal::models
