// Operators of the trap device. Nearly all of them are one boxed function. It creates host tensors that stand for the
// tensors of the device, over the accessible mapping of the same memory. It then calls the kernel of the CPU, and
// applies changes of the host tensors to the tensors of the device.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <list>
#include <set>
#include <string_view>

#include "support/trap_backend.h"
#include "support/trap_memory.h"

namespace colossal::test {
namespace {

using c10::IValue;

bool is_trap(const at::Tensor& t) { return t.device().type() == c10::DeviceType::PrivateUse1; }

void take_metadata(c10::TensorImpl& to, const c10::TensorImpl& from) {
  to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

at::Tensor tensor_over(const c10::Storage& storage, c10::DispatchKey backend, const at::Tensor& like) {
  at::Tensor t =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(backend), like.dtype());
  take_metadata(*t.unsafeGetTensorImpl(), *like.unsafeGetTensorImpl());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  t._set_conj(like.is_conj());
  t._set_neg(like.is_neg());
  return t;
}

/// The host tensors that stand for tensors of the device during one operator.
class Stand {
 public:
  explicit Stand(std::string operator_name) : name_(std::move(operator_name)) {}

  /// Returns a host tensor over the memory of `t`. A host tensor without dimensions is returned as it is, unless it is
  /// written.
  at::Tensor in(const at::Tensor& t, bool written) {
    if (!t.defined()) return t;
    if (!is_trap(t)) {
      TORCH_CHECK(t.is_cpu() && t.dim() == 0 && !written, "Expected all tensors to be on the same device, but found a ",
                  t.dim(), "-dimensional tensor on ", t.device(), " beside those of the trap device in ", name_);
      return t;
    }
    use(t.device());
    for (const Wrapped& known : tensors_)
      if (known.device.is_same(t)) return known.host;
    const at::Tensor host = tensor_over(in(t.storage()), c10::DispatchKey::CPU, t);
    tensors_.push_back({t, host});
    return host;
  }
  c10::Storage in(const c10::Storage& storage) {
    for (const Lent& known : storages_)
      if (known.device.is_alias_of(storage)) return known.host;
    void* address = TrapMemory::of_process().accessible(storage.unsafeGetStorageImpl()->data());
    c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(address, at::kCPU),
                      &trap_alias_allocator(), storage.resizable());
    storages_.push_back({storage, host, address});
    return host;
  }
  void use(c10::Device device) {
    TORCH_CHECK(!device_ || *device_ == device, "Expected all tensors to be on the same device, but found ", *device_,
                " and ", device, " in ", name_);
    device_ = device;
  }
  c10::Device device() const {
    return device_.value_or(c10::Device(c10::DeviceType::PrivateUse1, current_trap_device()));
  }

  /// Applies new sizes of host tensors, and new memory of their storages, to the tensors of the device.
  void carry_back() {
    for (const Lent& lent : storages_) {
      c10::StorageImpl& host = *lent.host.unsafeGetStorageImpl();
      if (host.data() == lent.address && host.nbytes() == lent.device.nbytes()) continue;
      if (host.data() != lent.address)
        lent.device.set_data_ptr_noswap(forbidden_of(host.set_data_ptr({nullptr, at::kCPU}), lent.device.device()));
      lent.device.set_nbytes(host.nbytes());
    }
    for (const Wrapped& wrapped : tensors_) {
      c10::TensorImpl& device = *wrapped.device.unsafeGetTensorImpl();
      const c10::Storage storage = out(wrapped.host.storage());
      if (!device.storage().is_alias_of(storage)) device.set_storage_keep_dtype(storage);
      if (device.sizes() != wrapped.host.sizes() || device.strides() != wrapped.host.strides() ||
          device.storage_offset() != wrapped.host.storage_offset())
        take_metadata(device, *wrapped.host.unsafeGetTensorImpl());
    }
  }
  /// Returns the tensor of the device for a result of the kernel: a known tensor, a view of one, or a new one with the
  /// same values.
  at::Tensor out(const at::Tensor& host) {
    if (!host.defined()) return host;
    TORCH_CHECK(host.layout() == at::kStrided, "the trap device has strided tensors only: ", name_);
    for (const Wrapped& known : tensors_)
      if (known.host.is_same(host)) return known.device;
    return tensor_over(out(host.storage()), c10::DispatchKey::PrivateUse1, host);
  }

 private:
  struct Lent {
    c10::Storage device, host;
    void* address;  // accessible address at the start of the operator
  };
  struct Wrapped {
    at::Tensor device, host;
  };

  c10::Storage out(const c10::Storage& host) {
    for (const Lent& known : storages_)
      if (known.host.is_alias_of(host)) return known.device;
    const c10::DeviceGuard guard(device());
    c10::DataPtr data = trap_allocator().allocate(host.nbytes());
    void* address = TrapMemory::of_process().accessible(data.get());
    if (address) std::memcpy(address, host.data(), host.nbytes());
    c10::Storage made(c10::Storage::use_byte_size_t(), host.nbytes(), std::move(data), &trap_allocator(),
                      /*resizable=*/true);
    storages_.push_back({made, host, address});
    return made;
  }

  const std::string name_;
  std::optional<c10::Device> device_;
  std::list<Lent> storages_;
  std::list<Wrapped> tensors_;
};

IValue in(Stand& stand, const IValue& value, const c10::Argument& argument) {
  const bool written = argument.alias_info() && argument.alias_info()->isWrite();
  if (value.isTensor()) return stand.in(value.toTensor(), written);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(stand.in(t, written));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorList())
      list.push_back(t ? std::optional(stand.in(*t, written)) : std::nullopt);
    return list;
  }
  if (value.isStorage()) return stand.in(value.toStorage());
  if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    TORCH_CHECK(device.type() == c10::DeviceType::PrivateUse1, "the trap device cannot make tensors of ", device);
    if (device.has_index()) stand.use(device);
    return c10::Device(at::kCPU);
  }
  if (value.isGenerator()) return host_generator_of(value.toGenerator());
  // If the caller passes no generator, the device's own one is used, because a GPU never uses the host's.
  if (const auto optional = argument.type()->cast<c10::OptionalType>();
      value.isNone() && optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType)
    return host_generator_of(trap_generator(stand.device().index()));
  return value;
}

IValue out(Stand& stand, const IValue& value) {
  if (value.isTensor()) return stand.out(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : value.toTensorVector()) list.push_back(stand.out(t));
  return list;
}

/// Returns true if the operator makes the host wait on CUDA, for the number of elements of the result or for a boolean.
bool reads_sizes(const c10::OperatorName& name, const torch::jit::Stack& arguments) {
  static const std::set<std::string_view> kReaders{"nonzero",           "masked_select", "_unique",
                                                   "_unique2",          "unique_dim",    "unique_consecutive",
                                                   "repeat_interleave", "bincount",      "equal"};
  std::string_view base = name.name;
  base.remove_prefix(base.find("::") + 2);
  if (base != "_index_put_impl_") return kReaders.contains(base);
  for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorList())
    if (index && index->defined() && index->scalar_type() == at::kBool)
      return arguments[2].toTensor().numel() != 1;  // with one value it is a masked_fill, which reads no sizes
  return false;
}

/// Returns a tensor with the same memory and sizes, because the program may resize or free its own tensor later. A host
/// tensor is copied, because a kernel launch copies its value.
at::Tensor as_it_is(const at::Tensor& t) {
  if (!t.defined()) return t;
  if (is_trap(t)) return tensor_over(t.storage(), c10::DispatchKey::PrivateUse1, t);
  at::Tensor copy = t.clone();
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

IValue as_it_is(const IValue& value) {
  if (value.isTensor()) return as_it_is(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(as_it_is(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorList())
      list.push_back(t ? std::optional(as_it_is(*t)) : std::nullopt);
    return list;
  }
  return value;
}

torch::jit::Stack as_they_are(at::ArrayRef<IValue> values) {
  const at::AutoDispatchBelowAutograd below;
  torch::jit::Stack copies;
  for (const IValue& value : values) copies.push_back(as_it_is(value));
  return copies;
}

/// Copies a result of a replay to the memory of the same result in the recording, unless the operator has written it
/// there.
void put_numbers(const at::Tensor& from, const at::Tensor& into) {
  if (!from.defined() || from.storage().is_alias_of(into.storage()) || into.storage().nbytes() == 0) return;
  TORCH_CHECK(from.sizes() == into.sizes() && from.strides() == into.strides() &&
                  from.storage().nbytes() == into.storage().nbytes(),
              "a replay made other sizes than the recording: ", from.sizes(), " and ", into.sizes());
  trap_allocator().copy_data(into.storage().unsafeGetStorageImpl()->mutable_data(),
                             from.storage().unsafeGetStorageImpl()->data(), into.storage().nbytes());
}

void put_numbers(const IValue& from, const IValue& into) {
  if (from.isTensor()) put_numbers(from.toTensor(), into.toTensor());
  if (!from.isTensorList()) return;
  const auto made = from.toTensorVector(), known = into.toTensorVector();
  for (size_t i = 0; i < made.size(); ++i) put_numbers(made[i], known[i]);
}

bool is_any_recording() {
  for (c10::DeviceIndex i = 0; i < kTrapDevices; ++i)
    if (is_recording({c10::DeviceType::PrivateUse1, i})) return true;
  return false;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& wanted = schema.arguments();
  auto arguments = torch::jit::pop(*stack, wanted.size());
  const torch::jit::Stack given = is_any_recording() ? as_they_are(arguments) : torch::jit::Stack();
  Stand stand(c10::toString(op.operator_name()));
  const bool waits = reads_sizes(op.operator_name(), arguments);
  // Generators are converted last, because the default one depends on the device of the tensors.
  for (const bool tensors : {true, false})
    for (size_t i = 0; i < wanted.size(); ++i) {
      const bool is_late = arguments[i].isNone() || arguments[i].isGenerator();
      if (is_late != tensors) arguments[i] = in(stand, arguments[i], wanted[i]);
    }
  if (waits) {
    refuse_while_recording(stand.device(), "the host reads how many numbers there are");
    count(stand.device(), {.sizes_read = 1});
  }
  count_operator(stand.device());
  catch_up(stand.device());
  for (IValue& argument : arguments) stack->push_back(std::move(argument));
  {
    const at::AutoDispatchBelowAutograd below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);  // observers of operators do not see it
  }
  stand.carry_back();
  auto results = torch::jit::pop(*stack, schema.returns().size());
  for (IValue& result : results) stack->push_back(result = out(stand, result));
  if (!is_recording(stand.device())) return;
  record_call(stand.device(), [op, given, known = as_they_are(results)] {
    torch::jit::Stack again = as_they_are(given);
    run_on_cpu(op, &again);
    for (size_t i = 0; i < known.size(); ++i) put_numbers(again[i], known[i]);
  });
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &trap_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &trap_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

at::Tensor on_host(Stand& stand, const at::Tensor& t) { return is_trap(t) ? stand.in(t, true) : t; }

void copy_numbers(const at::Tensor& from, const at::Tensor& to) {
  const at::AutoDispatchBelowAutograd below;
  const at::DisableRecordFunctionGuard unseen;
  Stand source("copy_"), target("copy_");
  on_host(target, to).copy_(on_host(source, from));
}

/// Returns a function that returns `t` again and does not own its memory. The function throws after the memory was
/// freed.
std::function<at::Tensor()> as_if_freed(const at::Tensor& t) {
  const at::Tensor like = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).pinned_memory(false));
  return [like, offset = t.storage_offset(), key = is_trap(t) ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU,
          storage = t.storage().getWeakStorageImpl()] {
    const auto alive = storage.lock();
    TORCH_CHECK(alive, "a copy between the host and the trap device comes when a side of it is freed already");
    const at::Tensor again = tensor_over(c10::Storage(alive), key, like);
    again.unsafeGetTensorImpl()->set_storage_offset(offset);
    return again;
  };
}

/// Copies between any two devices.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (is_trap(from) != is_trap(to))
    refuse_while_recording((is_trap(to) ? to : from).device(), "a copy between the host and the device");
  const at::Tensor& there = is_trap(to) ? to : from;
  const at::Tensor& here = is_trap(to) ? from : to;
  const bool crosses = is_trap(from) != is_trap(to), waits = !(non_blocking && is_trap_pinned(here.const_data_ptr()));
  if (crosses && !waits && is_aside(there.device())) {
    copy_later(there.device(),
               [source = as_if_freed(from), target = as_if_freed(to)] { copy_numbers(source(), target()); });
  } else {
    catch_up(there.device());
    copy_numbers(from, to);
  }
  if (!crosses) {
    if (is_recording(to.device()))
      record_call(to.device(), [source = as_it_is(from), target = as_it_is(to)] { copy_numbers(source, target); });
    return to;
  }
  const auto bytes = static_cast<int64_t>(to.numel() * std::min(from.element_size(), to.element_size()));
  if (is_trap(to))
    count(to.device(), {.copies_to_device = waits, .copies_not_awaited = !waits, .bytes_to_device = bytes});
  else
    count(from.device(), {.copies_to_host = waits, .copies_not_awaited = !waits, .bytes_to_host = bytes});
  return to;
}

at::Scalar read_scalar(const at::Tensor& t) {
  refuse_while_recording(t.device(), "the host reads a number");
  count(t.device(), {.scalar_reads = 1});
  return peek(t).item();
}

}  // namespace

at::Tensor peek(const at::Tensor& x) {
  if (!x.is_privateuseone()) return x.detach().to(at::kCPU, x.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  const at::AutoDispatchBelowAutograd below;
  const at::DisableRecordFunctionGuard unseen;
  Stand stand("peek");
  return on_host(stand, x).clone();
}

void register_trap_operators() {
  // The libraries are never deleted, because threads of LibTorch's engine outlive main.
  auto* all = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  auto* aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten->impl("empty.memory_format", TORCH_FN(empty));
  aten->impl("empty_strided", TORCH_FN(empty_strided));
  aten->impl("_copy_from", TORCH_FN(copy_from));
  aten->impl("_local_scalar_dense", TORCH_FN(read_scalar));
  // LibTorch composes this operator of others on a device without a kernel for it, but GPUs have a kernel.
  aten->impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  register_trap_fused_operators(*aten);
}

}  // namespace colossal::test
