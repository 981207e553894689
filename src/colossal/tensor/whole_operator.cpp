#include "colossal/tensor/whole_operator.h"

namespace colossal::tensor {
namespace {

thread_local OperatorRecorder* recorder_of_thread = nullptr;

}  // namespace

OperatorRecorder* operator_recorder() { return recorder_of_thread; }

RecorderScope::RecorderScope(OperatorRecorder* recorder) : before_(recorder_of_thread) {
  recorder_of_thread = recorder;
}

RecorderScope::~RecorderScope() { recorder_of_thread = before_; }

}  // namespace colossal::tensor
