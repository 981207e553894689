// Names of parts of a pipeline that draws pictures, which diffusers gives to their folders.
//
//   const std::string folder = concat(pipeline, "/", kTextEncoderPart);
#pragma once

namespace colossal {

inline constexpr char kUnetPart[] = "unet", kTransformerPart[] = "transformer", kVaePart[] = "vae",
                      kTextEncoderPart[] = "text_encoder", kSecondTextEncoderPart[] = "text_encoder_2",
                      kThirdTextEncoderPart[] = "text_encoder_3", kSchedulerPart[] = "scheduler";

}  // namespace colossal
