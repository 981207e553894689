#include "support/trap_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <mutex>
#include <ostream>

#include "colossal/base/error.h"
#include "support/trap_backend.h"
#include "support/trap_memory.h"

namespace colossal::test {
namespace {

constexpr c10::DeviceType kTrap = c10::DeviceType::PrivateUse1;

at::Device on_trap(c10::DeviceIndex index) { return {kTrap, index}; }

c10::DeviceIndex checked_index(c10::DeviceIndex index) {
  require(index < kTrapDevices, "trap", "there are ", kTrapDevices, " devices: got number ", int{index});
  return index < 0 ? current_trap_device() : index;
}

/// A generator of a trap device, which wraps a generator of the CPU.
class TrapGenerator final : public c10::GeneratorImpl {
 public:
  TrapGenerator(at::Device device, at::Generator inner)
      : GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), inner_(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override { inner_.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner_.set_offset(offset); }
  uint64_t get_offset() const override { return inner_.get_offset(); }
  uint64_t current_seed() const override { return inner_.current_seed(); }
  uint64_t seed() override { return inner_.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& inner() const { return inner_; }

 private:
  TrapGenerator* clone_impl() const override { return new TrapGenerator(device(), inner_.clone()); }

  at::Generator inner_;
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<TrapGenerator>(on_trap(checked_index(index)), at::detail::createCPUGenerator());
}

thread_local c10::DeviceIndex current_index = 0;

/// Returns the number of operators that each device has run so far.
std::array<std::atomic<int64_t>, kTrapDevices>& operators_run() {
  static std::array<std::atomic<int64_t>, kTrapDevices> counts{};
  return counts;
}

/// The state of an event: the device's clock, and the number of work items that its stream had.
struct Mark {
  int64_t clock = 0, asked = 0;
  at::Device device;
  c10::StreamId stream = 0;
};

/// The device guard of LibTorch for trap devices, with their streams and events. Work runs at once, except for delayed
/// copies (trap_backend.h), which are made when the host or a stream waits for them. Events read the device's own clock
/// (kTrapMilliseconds).
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return kTrap; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    setDevice(device);
    return before;
  }
  at::Device getDevice() const override { return on_trap(current_index); }
  void setDevice(at::Device device) const override { current_index = checked_index(device.index()); }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    if (device.index() >= 0) current_index = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kTrapDevices; }

  c10::Stream getStream(at::Device device) const override { return stream(device, current_trap_stream(device)); }
  c10::Stream getDefaultStream(at::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(at::Device device, int) const override { return stream(device, new_trap_stream()); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    set_current_trap_stream(to.device(), to.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  bool queryStream(const c10::Stream& stream) const override {
    return is_done(stream.device(), stream.id(), asked_of(stream.device(), stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    do_until(stream.device(), stream.id(), asked_of(stream.device(), stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { catch_up_all(); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Mark{.device = stream.device()};
    mark(*event) = {.clock = operators_run().at(static_cast<size_t>(stream.device_index())),
                    .asked = asked_of(stream.device(), stream.id()),
                    .device = stream.device(),
                    .stream = stream.id()};
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Mark*>(event); }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return kTrapMilliseconds * static_cast<double>(mark(to).clock - mark(from).clock);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) go_on_behind(stream.device(), stream.id(), mark(event).stream, mark(event).asked);
  }
  bool queryEvent(void* event) const override {
    return !event || is_done(mark(event).device, mark(event).stream, mark(event).asked);
  }
  void synchronizeEvent(void* event) const override {
    if (event && do_until(mark(event).device, mark(event).stream, mark(event).asked))
      count(mark(event).device, {.copies_awaited = 1});
  }

 private:
  static Mark& mark(void* event) { return *static_cast<Mark*>(event); }
  c10::Stream stream(at::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, device.has_index() ? device : getDevice(), id);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kTrapDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_trap_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_index;
    set_current_trap_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_index : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return trap_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  bool isPinnedPtr(const void* address) const override { return is_trap_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &trap_pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = trap_allocator().allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) trap_allocator().copy_data(data.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

std::mutex& counts_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::array<TrapCounts, kTrapDevices>& all_counts() {
  static std::array<TrapCounts, kTrapDevices> counts;
  return counts;
}

TrapCounts sum(const TrapCounts& a, const TrapCounts& b, int64_t sign) {
  return {.scalar_reads = a.scalar_reads + sign * b.scalar_reads,
          .sizes_read = a.sizes_read + sign * b.sizes_read,
          .copies_to_host = a.copies_to_host + sign * b.copies_to_host,
          .copies_to_device = a.copies_to_device + sign * b.copies_to_device,
          .copies_awaited = a.copies_awaited + sign * b.copies_awaited,
          .copies_not_awaited = a.copies_not_awaited + sign * b.copies_not_awaited,
          .bytes_to_host = a.bytes_to_host + sign * b.bytes_to_host,
          .bytes_to_device = a.bytes_to_device + sign * b.bytes_to_device};
}

}  // namespace

const at::Generator& trap_generator(c10::DeviceIndex index) {
  static const auto* all = [] {
    auto* made = new std::array<at::Generator, kTrapDevices>();
    for (c10::DeviceIndex i = 0; i < kTrapDevices; ++i) (*made)[static_cast<size_t>(i)] = new_generator(i);
    return made;
  }();
  return (*all)[static_cast<size_t>(checked_index(index))];
}

at::Generator host_generator_of(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kTrap, "Expected a 'trap' device type for generator but found '",
              generator.device(), "'");
  return static_cast<TrapGenerator*>(generator.unsafeGetGeneratorImpl())->inner();
}

c10::DeviceIndex current_trap_device() { return current_index; }

void set_current_trap_device(c10::DeviceIndex index) { current_index = checked_index(index); }

void count_operator(c10::Device device) { ++operators_run().at(static_cast<size_t>(device.index())); }

void count(c10::Device device, const TrapCounts& happened) {
  const std::lock_guard lock(counts_mutex());
  TrapCounts& counts = all_counts()[static_cast<size_t>(device.index())];
  counts = sum(counts, happened, 1);
}

TrapCounts counted(c10::Device device) {
  const std::lock_guard lock(counts_mutex());
  return all_counts()[static_cast<size_t>(device.index())];
}

TrapCounts operator-(const TrapCounts& a, const TrapCounts& b) { return sum(a, b, -1); }

std::ostream& operator<<(std::ostream& out, const TrapCounts& c) {
  return out << c.waits() << " waits (" << c.scalar_reads << " numbers and " << c.sizes_read << " sizes read, "
             << c.copies_to_host << " copies to the host, " << c.copies_to_device << " to the device, "
             << c.copies_awaited << " copies aside), " << c.copies_not_awaited << " copies not awaited; "
             << c.bytes_to_host << " bytes to the host, " << c.bytes_to_device << " to the device";
}

at::Device trap_device(int index) {
  [[maybe_unused]] static const bool registered = [] {
    TrapMemory::of_process();
    c10::register_privateuse1_backend("trap");
    c10::impl::DeviceGuardImplRegistrar guard(kTrap, new Guard());
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    c10::SetAllocator(kTrap, &trap_allocator());
    register_trap_operators();
    return true;
  }();
  return on_trap(checked_index(static_cast<c10::DeviceIndex>(index)));
}

TrapWaits::TrapWaits(at::Device device) : device_(device), before_(counted(device)) {}

TrapCounts TrapWaits::counts() const { return counted(device_) - before_; }

}  // namespace colossal::test
