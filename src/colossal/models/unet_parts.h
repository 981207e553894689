// The order of the parts of a UNet: which of them are blocks of its Model, which states these pass on, and where they
// are in diffusers' folder.
//
//   for (const UnetPart& part : unet_parts(sizes)) std::cout << part.folder << " " << part.out << "\n";
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/families/unet.h"
#include "colossal/ops/convolution.h"

namespace colossal::models {

/// The states of a UNet. The skips follow, in the order in which they are made: the first one is what the embedding
/// makes of the picture. If a transformer has several layers, the last state is what these pass on.
constexpr int kUnetHidden = 0, kUnetCondition = 1, kUnetText = 2, kUnetSkips = 3;

/// A part, which is one block of the Model.
struct UnetPart {
  enum class Kind : uint8_t { Resnet, Transformer, Downsampler, Upsampler };

  /// Returns true if the part reads a skip in addition to its input.
  bool joins() const { return skip >= 0; }

  Kind kind = Kind::Resnet;
  std::string folder{};           ///< prefix of its tensors in diffusers' folder: "down_blocks.0.resnets.1."
  int64_t from = 0, level = 0;    ///< levels of the pictures that it reads and writes
  int64_t in = 0, out = 0;        ///< features that it reads, without those of the skip, and that it writes
  int64_t skip_features = 0;      ///< features of the skip that it reads in addition; 0 = none
  int reads = 0, writes = 0;      ///< states: that of its input, and that of its result
  int skip = -1;                  ///< state of the skip that it reads in addition; -1 = none
  int64_t layer = 0, layers = 1;  ///< of a transformer: number of this layer, which is a part, and of all its layers
  int inside = -1;                ///< state that its layers pass on; -1 = it has one layer

  /// Return true of the layer that begins with the transformer's norm and projection, and of the one that ends with its
  /// other projection and adds the result to its input.
  bool begins() const { return layer == 0; }
  bool ends() const { return layer + 1 == layers; }
};

/// Returns the size of the pictures of a level, of pictures of `size` at level 0: each level halves it, rounded up.
ops::PictureSize unet_level_size(ops::PictureSize size, int64_t level);

/// Returns the parts in the order in which a pass runs them. Lists of `sizes` must be as long as its features.
std::vector<UnetPart> unet_parts(const UnetSizes& sizes);

/// Returns the elements of the tensors that a forward pass of one picture of the sizes sums over the ranks of tensor
/// parallelism 1d: the result of each ResNet's second convolution, and three hidden states of each layer of a
/// transformer.
int64_t unet_elements_summed(const UnetSizes& sizes);

}  // namespace colossal::models
