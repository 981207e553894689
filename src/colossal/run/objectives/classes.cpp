#include "colossal/run/objectives/classes.h"

#include "colossal/base/error.h"
#include "colossal/run/objectives/class_data.h"

namespace colossal::run {

Class::Class(const Config& config, const models::ModelShape& shape) : CountingObjective(config, shape) {
  const models::Task task = shape.task();
  check_head(task.reads != models::Reads::Fields && task.classes > 0, "class", "classifies whole samples", shape);
}

OpenedData Class::open(const DataRequest& request) const {
  if (request.shape.task().reads_text()) return open_labelled(request);
  OpenedData data = open_images(request.config, request.shape);
  data.threads = static_cast<int>(request.config.data.threads);
  return data;
}

}  // namespace colossal::run
