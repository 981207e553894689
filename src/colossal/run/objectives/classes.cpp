#include "colossal/run/objectives/classes.h"

#include "colossal/base/error.h"
#include "colossal/run/objectives/class_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {

Class::Class(const Config& config, const models::ModelShape& shape, Keys keys)
    : CountingObjective(config, shape), keys_(std::move(keys)) {
  const models::Task task = shape.task();
  check_head(task.reads != models::Reads::Fields && task.classes > 0, "class", "classifies whole samples", shape);
  refuse_unused_data_keys(keys_, {{"min_crop_area", keys_.augment, "data.augment"}});
}

OpenedData Class::open(const DataRequest& request) const {
  if (request.shape.task().reads_text()) return open_labelled(request, keys_);
  OpenedData data = open_images(request.config, keys_, request.shape);
  data.threads = static_cast<int>(request.config.data.threads);
  return data;
}

}  // namespace colossal::run
