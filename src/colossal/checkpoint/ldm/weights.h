// One part of a makers' single file, as weights under the names of diffusers.
//
//   const LdmWeights unet("v1-5-pruned-emaonly.safetensors", "unet");
//   checkpoint::import_weights(unet, "v1-5-pruned-emaonly.safetensors", parameters, values, names);
#pragma once
#include <map>
#include <string>

#include "colossal/checkpoint/ldm/names.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// Reads one part of a file. Its tensors are those of ldm_places(); each is read when it is asked for. The first text
/// encoder of Stable Diffusion 3 also has a projection, which is the identity, as in diffusers' folders.
///
/// Errors: throws Error("ldm", ...) if the file has no tensor of the part, if two tensors have one place, or if the
///         rows of a fused tensor do not divide. Errors of SafetensorsReader.
class LdmWeights final : public WeightSource {
 public:
  /// `part`: any of LdmPlace::part.
  LdmWeights(const std::string& path, const std::string& part);
  at::Tensor tensor(const std::string& name) const override;
  void leave(const std::string& name) const override;
  bool can_wait(const std::string& name) const override;

 private:
  struct Stored {
    std::string name{};   // in the file; empty = it is the identity
    LdmRows rows{};       // rows of that tensor that it has
    TensorEntry entry{};  // as it is presented
  };
  SafetensorsReader file_;
  std::map<std::string, Stored> stored_;  // by the name in the folder
};

}  // namespace colossal::checkpoint
