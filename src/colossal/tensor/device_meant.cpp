#include "colossal/tensor/device_meant.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/error.h"

namespace colossal::tensor {
namespace {

/// A variable of the thread and not an argument, because operators have no argument for it and autograd calls them.
at::DeviceType& meant_type() {
  thread_local at::DeviceType type = at::kCPU;
  return type;
}

}  // namespace

MeantDevice::MeantDevice(at::DeviceType device) : before_(std::exchange(meant_type(), device)) {
  if (device != at::kMeta) return;
  meant_type() = before_;
  throw Error("record", "meta must stand for a device that has memory: got meta; name cpu or cuda");
}
MeantDevice::~MeantDevice() { meant_type() = before_; }

at::Tensor shape_in_place(const at::Tensor& x) {
  const at::Tensor shape = at::empty({0}, x.options().device(at::kMeta).pinned_memory(false));
  shape.storage().unsafeGetStorageImpl()->set_nbytes(x.storage().nbytes());
  shape.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides());
  return shape;
}

at::Device device_meant(at::Device device) { return device.is_meta() ? at::Device(meant_type()) : device; }

}  // namespace colossal::tensor
