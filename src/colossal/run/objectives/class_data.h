// Opens samples with a class: labelled texts, CIFAR's images, folders of images.
#pragma once
#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

/// Opens the labelled texts of data.path. Errors ("data", "model"): errors of reading; classes that differ from the
/// model's.
OpenedData open_labelled(const DataRequest& request, const ClassKeys& keys);

/// Opens the images of data.path with their classes. Errors ("data", "model"): errors of reading; sizes or classes that
/// differ from the model's.
OpenedData open_images(const Config& config, const ClassKeys& keys, const models::ModelShape& shape);

}  // namespace colossal::run
