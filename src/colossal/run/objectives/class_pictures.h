// Pictures with classes, as samples of classifiers and of models that draw: drawn shapes, or a folder of pictures for
// each class.
//
//   OpenedData data = open_class_pictures(config, {.count = 10, .channels = 3}, {.width = 32, .augment = true});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/pictures/folder.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// What a model knows of the classes of its pictures.
struct PictureClasses {
  int64_t count = 0;                 ///< number of classes of the model; 0 = it has none, and any pictures fit
  int64_t channels = 0;              ///< channels of its pictures
  std::vector<std::string> names{};  ///< of the classes; empty = the model takes those of the data
};

/// Opens data.path, `builtin-shapes` or a folder, as samples with the fields "images" and "labels". `options` are those
/// of training; held-out pictures are not augmented. Drawn shapes are mirrored if they are augmented. A folder has its
/// held-out pictures in `test` (or `val`, `validation`) beside `train`, or data.held_out of all.
/// Errors ("data"): no such pictures. ("model"): fewer classes than the pictures have; other channels than 3.
OpenedData open_class_pictures(const Config& config, const PictureClasses& classes, data::PictureOptions options);

}  // namespace colossal::run
