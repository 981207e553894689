// Samples with a class: labelled texts, CIFAR's images, folders of pictures.
#pragma once
#include "colossal/run/objective.h"

namespace colossal::run {

/// Texts with labels, of data.path. Errors ("data", "model"): those of reading; other classes than the model's.
OpenedData open_labelled(const DataRequest& request);

/// Images with classes, of data.path. Errors ("data", "model"): those of reading; other sizes or classes than the
/// model's.
OpenedData open_images(const Config& config, const models::ModelShape& shape);

}  // namespace colossal::run
