// The keys of models that encode and decode pictures or clips. This header needs no LibTorch.
//
//   [reconstruction]
//   l1 = 1                       # weight of the distance of pixels
//   kl = 1e-6                    # weight of the divergence of latents from normal numbers
//   lpips = 1                    # weight of the perceptual distance
//   lpips_from = "lpips"         # folder with the weights of VGG16 and of LPIPS
//   gan = 0.1                    # weight of the judgement of a discriminator, which trains together with the model
//   gan_start = 10000            # steps without it
//   [discriminator.optimizer]
//   betas = [0.5, 0.9]
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/fields.h"

namespace colossal::run {

/// Name of the objective and of its table.
inline constexpr char kReconstruction[] = "reconstruction";
/// Name of the further model that judges reconstructions, and of its table.
inline constexpr char kDiscriminator[] = "discriminator";

/// The table [reconstruction].
struct ReconstructionKeys {
  double l1 = 1, kl = 1e-6;
  double lpips = 0;
  std::string lpips_from;  ///< folder with safetensors files (lpips.h)
  double gan = 0;          ///< 0 = no discriminator
  int64_t gan_start = 0;   ///< steps before the discriminator trains and judges
  void fields(Fields& f);
  bool operator==(const ReconstructionKeys&) const = default;
};

/// The table [discriminator].
struct DiscriminatorKeys {
  std::string name = "patch-discriminator";  ///< a preset, with random weights
  ConfigDocument own{};                      ///< the table `optimizer` in it, with the keys of [optimizer]
  void fields(Fields& f);
  bool operator==(const DiscriminatorKeys& other) const;
};

/// The keys of [data] for pictures or clips that a model reconstructs. Those of clips: as DrawnDataKeys has them.
struct ReconstructionDataKeys {
  std::vector<int64_t> size;  ///< width and height in pixels; empty = those of the model
  bool mirror = false;
  std::vector<int64_t> frames;
  std::vector<double> keep;
  std::vector<int64_t> batch_sizes;
  double fps = 24;
  void fields(Fields& f);
  bool operator==(const ReconstructionDataKeys&) const = default;
};

}  // namespace colossal::run
