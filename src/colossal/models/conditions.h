// What a denoiser is told of each row beside its noise level and its class or caption: one list, from which batches,
// rows of training and drawings are made.
//
//   for (const models::Condition& one : models::conditions_of(shape))
//     batch.add(one.name, one.zeros(rows, cells, at::kFloat));         // "fps" [B], "control" [B, 3, H, W] ..
//
// A new one is a row of conditions_of(), a way to find it of a picture in training (run/objectives/diffusion/
// row_conditions.h), and a way to tell it in a drawing (diffusion/drawing.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/ops/convolution.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The names of conditions (models/denoiser.h).
inline constexpr char kRate[] = "fps", kSizes[] = "sizes", kGuidance[] = "guidance", kControl[] = "control",
                      kImageEmbedding[] = "image";

/// Floating-point numbers of each row, in a field of a batch.
struct Condition {
  std::string name;
  std::vector<int64_t> sizes{};  ///< of a row, without those of its picture; empty = one number
  int64_t per_cell = 0;          ///< above 0: height and width follow, each this number times the cells of the picture

  /// Returns the field of `rows` rows of pictures or frames of these cells. `options` may name meta.
  tensor::Field zeros(int64_t rows, const ops::PictureSize& cells, const at::TensorOptions& options) const;
};

/// Returns the values of a condition, with their rows first, as a field.
tensor::Field condition_field(const at::Tensor& values);

/// Returns what a model of this shape is told; empty for one that is no denoiser.
std::vector<Condition> conditions_of(const ModelShape& shape);

}  // namespace colossal::models
