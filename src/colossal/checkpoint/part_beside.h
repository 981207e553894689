// A part of a pipeline that has weights of a model beside the part that denoises, such as its text encoder.
//
//   auto weights = checkpoint::open_weights("pipeline", {{"text_encoder", "text_model."}});
#pragma once
#include <string>

namespace colossal::checkpoint {

/// A part of a pipeline whose tensors a model has beside those of the part that denoises.
struct PartBeside {
  std::string name{};    ///< its folder in the pipeline, "text_encoder"
  std::string prefix{};  ///< some folders begin names with it, "text_model."; in others all names lack it
};

}  // namespace colossal::checkpoint
