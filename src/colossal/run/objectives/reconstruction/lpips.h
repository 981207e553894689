// LPIPS, the learned perceptual distance of two pictures (Zhang et al. 2018, arXiv:1801.03924), version 0.1 with VGG16:
// the distance of what the network sees in them.
//
//   const run::Lpips lpips("lpips");                                       // a folder; nothing is read yet
//   lpips.check();                                                         // refuses a folder without the weights
//   const at::Tensor distance = lpips.distance(pixels, picture_pixels, {256, 256});        // [B]
//
// Pixels in [-1, 1] are shifted by (-.030, -.088, -.188) and divided by (.458, .448, .450). Of the results of conv1_2,
// conv2_2, conv3_3, conv4_3 and conv5_3, after their ReLU, the features of a pixel are divided by their norm. The
// squared differences of these features, times the weights of a layer `lin`, are summed over features and averaged over
// pixels. The distance is the sum over the five layers.
//
// The folder has .safetensors files with any names, which together hold these tensors:
//
//   features.{0,2,5,7,10,12,14,17,19,21,24,26,28}.weight   [out, in, 3, 3], as torchvision's vgg16 names them
//   features.{...}.bias                                    [out]
//   lin{0,1,2,3,4}.model.1.weight                          [1, features, 1, 1], as the package lpips names them
//
// The channels of each convolution are those of the file, so a narrower network works too. classifier.{0,3,6}.weight
// and .bias of torchvision's network may be there and are not read.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/ops/convolution.h"

namespace colossal::run {

/// The least side of a picture, in pixels: sides are halved four times.
inline constexpr int64_t kLeastSideOfLpips = 16;

/// The distance by the weights of a folder, which are read when they are first needed and then kept for each device and
/// dtype. On meta a folder that is not there stands for the sizes of VGG16, so plans need no weights.
/// Thread safety: any thread may call the members.
class Lpips {
 public:
  explicit Lpips(std::string folder);
  /// Refuses a folder without the weights. Reads the tables of its files, not the tensors.
  /// Errors ("lpips"): no .safetensors files; a name in two files; tensors that are missing, spare or of other sizes,
  /// in
  ///                   a table. Errors of checkpoint::SafetensorsReader.
  void check() const;
  /// Returns the distances [B] of pixels x and y [B, H W, 3] of pictures of that size, of the same device and dtype.
  /// The gradient is that of `x` alone. Where all features of a pixel are 0, their norm has no gradient.
  /// Errors ("lpips"): fewer than 16 x 16 pixels; other channels. Errors of check().
  at::Tensor distance(const at::Tensor& x, const at::Tensor& y, const ops::PictureSize& size) const;

 private:
  struct Loaded;

  std::string folder_;
  std::shared_ptr<Loaded> loaded_;  // shared by copies
};

}  // namespace colossal::run
