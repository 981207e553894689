// Where an encoder of pictures (models/image_encoder.h) is read from.
//
//   const run::ImageEncoderSource encoder = run::image_encoder_of("ip-adapter");   // {"ip-adapter/image_encoder"}
#pragma once
#include <cstdint>
#include <string>

namespace colossal::run {

/// An encoder of pictures.
struct ImageEncoderSource {
  std::string path{};  ///< a folder, or the name of a preset; empty = there is none
  uint64_t seed = 1;   ///< of the random weights of a preset
};

}  // namespace colossal::run
