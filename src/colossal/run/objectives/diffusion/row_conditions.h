// What a row of training is told of its picture or clip beside its caption: its sizes, its frame rate, its control
// picture.
//
//   const tensor::Batch told = row_conditions(models::conditions_of(shape), {pictures, index, bucket, is_mirrored});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/pictures/bucket_reader.h"
#include "colossal/models/conditions.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_cache.h"
#include "colossal/tensor/batch.h"

namespace colossal::run {

/// A picture or clip as a row shows it. `cache` and `image_encoder` (key_of_image_encoder()) are for the field `image`.
struct ShownPicture {
  const DrawnPictures& pictures;
  int64_t index = 0;
  const data::BucketShape& bucket;
  bool is_mirrored = false;
  const LatentCache* cache = nullptr;
  const std::string& image_encoder;
};

/// Returns the field of each condition, fp32 with one row:
///   fps       the frame rate of the clip; that of a picture is kPictureRate
///   sizes     height and width of the picture, top and left of its crop, and height and width of the bucket, in pixels
///   guidance  1, because training follows the data and no guided prediction
///   control   the control picture in [0, 1], mirrored with its picture
///   image     the stored embedding of the whole picture, which is not mirrored
/// Errors ("data"): those of control_pixels_of(); an embedding that the cache lacks.
tensor::Batch row_conditions(const std::vector<models::Condition>& conditions, const ShownPicture& shown);

}  // namespace colossal::run
