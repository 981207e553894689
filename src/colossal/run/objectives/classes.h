// The objective of models that classify whole samples: texts or images.
#pragma once
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// The objective of a classifier. Labels [B, 1]: the class of each sample.
class Class : public CountingObjective {
 public:
  using Keys = ClassKeys;
  Class(const Config& config, const models::ModelShape& shape, Keys keys);
  OpenedData open(const DataRequest& request) const override;

 private:
  Keys keys_;
};

}  // namespace colossal::run
