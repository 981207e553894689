// How well an autoencoder reconstructs the pictures and videos of a folder.
//
//   colossal evaluate --from runs/vae-shapes --reconstruct drawn --json   {"psnr": 31.2, "ssim": 0.95, "pictures": 9}
#pragma once
#include <string>

#include "colossal/cli/model_options.h"

namespace colossal::cli {

/// Encodes each picture and each video of `folder` and of the folders in it, decodes the mean of its latent, and prints
/// the means over them of evaluate::peak_signal_to_noise() and evaluate::structural_similarity(), of pixels of 8 bits;
/// of a video the means over its frames. Pictures are not resampled: their middle is taken, with the largest sides that
/// the autoencoder divides into cells. An autoencoder of pictures takes the frames of videos one by one; another one
/// takes all frames, but for the last ones that it cannot make (HunyuanVideo's: other than 4 k + 1).
/// Memory: the frames of one video, 3 bytes a pixel.
/// Errors ("evaluate"): a model that does not encode pictures in color; a folder without pictures and videos; one with
/// a side of fewer pixels than a cell or than 11; videos of more than 4 GiB, or on several ranks. Errors of
/// data::decode_picture() and data::open_video().
int evaluate_reconstruction(const std::string& folder, bool as_json, const LoadedModel& loaded);

}  // namespace colossal::cli
