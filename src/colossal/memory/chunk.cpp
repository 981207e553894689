#include "colossal/memory/chunk.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_plan.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/transfers.h"

namespace colossal::memory {
namespace {

/// Marks a storage as one of a chunk: holds the chunk and keeps the storage's memory alive.
struct Loan {
  Chunk* chunk;
  at::Tensor memory;
};

/// Fills values so that no reader can take them for others: with NaN, or with the codes of which scales are NaN.
void fill_with_nan_(const at::Tensor& values) {
  if (values.is_floating_point())
    values.fill_(std::numeric_limits<double>::quiet_NaN());
  else
    values.fill_(255);  // as fp32 it is NaN
}

void end_loan(void* loan) { delete static_cast<Loan*>(loan); }

c10::DataPtr loan_of(Chunk* chunk, const at::Tensor& memory, c10::Device device) {
  return {memory.defined() ? memory.mutable_data_ptr() : nullptr, new Loan{chunk, memory}, &end_loan, device};
}

/// True if a storage that refuses access can allow it again, which LibTorch 2.11 cannot. There only parameters whose
/// chunk is gone refuse it.
template <class Storage>
constexpr bool kCanAllow = requires(Storage& storage) { storage.clear_data_ptr_access_error_msg_(); };

/// Allows access and returns the message of the refusal. Neither this nor refuse_access() allocates, because both run
/// at every use.
template <class Storage>
std::optional<std::string> allow_access(Storage& storage) {
  std::optional<std::string> message;
  if constexpr (kCanAllow<Storage>) {
    message = std::exchange(storage.get_extra_meta().custom_data_ptr_error_msg_, std::nullopt);
    storage.clear_data_ptr_access_error_msg_();
  }
  return message;
}

template <class Storage>
void refuse_access(Storage& storage, std::optional<std::string> message) {
  if constexpr (kCanAllow<Storage>) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

std::string refusal_of(bool trained, int sharers) {
  return concat("[memory] the memory of a ", trained ? "trained" : "frozen", " parameter that ",
                sharers > 1 ? concat("ZeRO 3 shards over ", sharers, " ranks") : "is offloaded between its uses",
                " can be read directly only inside gathered(): got an access to its address (numpy, data_ptr, a kernel "
                "of your own) outside; put it inside gathered(), or clone the parameter");
}

constexpr const char* kEnded =
    "[memory] the values of a parameter end with the training that shards or offloads it: got an access to its address "
    "after that; save them before, or clone the parameter inside gathered()";

}  // namespace

at::Tensor view_of_slot(const at::Tensor& flat, const Slot& slot) {
  return flat.narrow(0, slot.offset, slot.size).view(slot.parameter->value.sizes());
}

Chunk* Chunk::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &end_loan ? static_cast<Loan*>(data.get_context())->chunk : nullptr;
}

Chunk::Chunk(size_t index, std::vector<Slot> slots, const at::Tensor& whole, comm::Group& sharers,
             const std::optional<comm::Compression>& compression, OffloadStore& offload, int64_t capacity,
             Watcher* watcher, bool in_place)
    : index_(index),
      slots_(std::move(slots)),
      length_(whole.numel()),
      sharers_(&sharers),
      compression_(compression),
      options_(whole.options()),
      watcher_(watcher),
      trained_(slots_.front().parameter->value.requires_grad()),
      in_place_(in_place),
      borrows_here_(offload.borrow_device(options_.device()) == options_.device()),
      state_(State::Gathered),
      whole_(whole),
      aside_(borrows_here_ && !options_.device().is_meta() ? at::Device(at::kCPU) : options_.device()) {
  require(length_ % sharers.size() == 0, "chunk", "length must be divisible by the ranks that share it: got ", length_,
          " for ", sharers.size());
  require(!in_place || (sharers.size() == 1 && !stays() && borrows_here_), "chunk",
          "a chunk that is read in place must have one rank, be borrowed on the device that reads it, and be "
          "releasable: got ",
          sharers.size(), " ranks");
  const int64_t most = in_place ? part_length() : segment_length(part_length(), capacity);
  int64_t first = 0;
  do {
    const int64_t length = std::min(most, part_length() - first);
    const at::Tensor own = own_slice().narrow(0, first, length);
    segments_.push_back(
        {first, length,
         stays() ? InPlace().offload(own) : offload.offload(part_length() < length_ ? own.clone() : own)});
    first += length;
  } while (first < part_length());
  if (!stays()) {  // the storage has the chunk's sizes, but no memory of its own at any time
    view_base_ = at::empty({0}, options_);
    storage().set_nbytes(static_cast<size_t>(bytes()));
    view_base_.unsafeGetTensorImpl()->set_sizes_contiguous({length_});
  }
  for (const Slot& slot : slots_) shapes_.push_back(slot.parameter->value.sizes().vec());
  for (size_t slot = 0; slot < slots_.size(); ++slot) slots_[slot].parameter->value.set_data(view_of(slot));
  release();
  if (!stays()) refuse_access(storage(), refusal_of(trained_, sharers.size()));
}

Chunk::~Chunk() {
  if (!view_base_.defined()) return;
  // Parameters may outlive the chunk. Their storage no longer refers to it. A gather in progress writes to the memory,
  // which therefore lives as long as they do.
  const at::Tensor memory = state_ == State::Gathering ? whole_ : at::Tensor();
  storage().set_data_ptr_noswap(
      {nullptr, new at::Tensor(memory), [](void* t) { delete static_cast<at::Tensor*>(t); }, options_.device()});
  storage().set_nbytes(0);
  storage().release_data_and_set_meta_custom_data_ptr_error_msg_(kEnded);
}

c10::StorageImpl& Chunk::storage() const { return *view_base_.storage().unsafeGetStorageImpl(); }

void Chunk::set_base_memory(const at::Tensor& whole) {
  storage().set_data_ptr_noswap(loan_of(this, whole, options_.device()));
  storage().set_nbytes(whole.defined() ? static_cast<size_t>(bytes()) : 0);
}

comm::Work Chunk::gathered(const at::Tensor& part) {
  return compression_ ? comm::compressed_all_gather(whole_, part, *sharers_, *compression_)
                      : sharers_->all_gather(whole_, part);
}

at::Tensor Chunk::as_gathered(const at::Tensor& part) const {
  const at::Tensor sent = comm::compressed_rows(part.view({1, -1}), *compression_);
  return comm::restored_rows(sent, part.numel(), *compression_, part.scalar_type()).view(-1);
}

at::Tensor Chunk::view_of(size_t slot) const {
  return base().narrow(0, slots_[slot].offset, slots_[slot].size).view(shapes_[slot]);
}

bool Chunk::has_memory_of(const at::Tensor& tensor) const {
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == base().storage().unsafeGetStorageImpl();
}

bool Chunk::is_attached(size_t slot) const {
  const at::Tensor& value = slots_[slot].parameter->value;
  return has_memory_of(value) && value.storage_offset() == base().storage_offset() + slots_[slot].offset &&
         value.sizes() == shapes_[slot] && value.is_contiguous();
}

void Chunk::require_same_kind(size_t slot) const {
  const nn::Parameter& p = *slots_[slot].parameter;
  require(
      p.value.sizes() == shapes_[slot] && p.value.dtype() == options_.dtype() && p.value.device() == options_.device(),
      "memory", "a parameter must keep its shape, dtype and device: got ", p.value.sizes(), " ", p.value.scalar_type(),
      " on ", p.value.device(), " instead of ", at::IntArrayRef(shapes_[slot]), " ", options_.dtype().name(), " on ",
      options_.device(), " for ", p.name,
      "; give it other values in place (load_state_dict(), copy_()), or initialize again");
}

void Chunk::attach(size_t slot) {
  require_same_kind(slot);
  slots_[slot].parameter->value.set_data(view_of(slot));
}

OffloadedTensor& Chunk::to_borrow(size_t segment) {
  watcher_->before_borrow(*this, segment);
  return *segments_[segment].offloaded;
}

void Chunk::copy_part(const at::Tensor& to) {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const auto& [first, length, offloaded] = segments_[i];
    to_borrow(i).copy_to(to.narrow(0, first, length));
    if (i + 1 < segments_.size()) segments_[i + 1].offloaded->prefetch();
  }
}

void Chunk::borrow_part() {
  is_borrowed_ = false;
  try {
    if (borrows_part()) {
      OffloadedTensor& offloaded = to_borrow(0);
      sent_ = offloaded.borrow();
      is_borrowed_ = true;
      // On meta the part is borrowed where an accelerator would get a copy of it.
      if (sent_.is_meta() && tensor::is_for_accelerator(sent_) && offloaded.bytes() > 0)
        tensor::announce_copy_to_device(static_cast<int64_t>(sent_.nbytes()));
    } else if (is_alone()) {
      copy_part(sent_ = whole_);
    } else {
      copy_part(sent_ = borrows_here_ ? at::empty({part_length()}, options_) : own_slice());
    }
  } catch (...) {  // the other ranks join the all_gather, so this rank must join it too
    watcher_->not_borrowed(*this, std::current_exception());
    if (!sent_.defined()) sent_ = at::empty({part_length()}, options_);
    fill_with_nan_(sent_);
  }
}

void Chunk::return_part() {
  const at::Tensor sent = std::exchange(sent_, {});
  if (std::exchange(is_borrowed_, false)) segments_.front().offloaded->return_borrowed(sent, false);
}

void Chunk::end_gather(comm::Work& work) {
  aside_.join();  // no Work makes the computing stream wait for the part if the ranks do not communicate
  try {
    work.wait();
  } catch (...) {
    return_part();
    throw;
  }
  if (!in_place_) return_part();
}

bool Chunk::gather() {
  if (state_ != State::Sharded) return false;
  const KindScope kind(Kind::Parameters);
  // A tensor of its own, so that the collective's accesses to it are not taken for uses of the chunk.
  if (!in_place_) whole_ = at::empty({length_}, options_);
  try {
    // Copies from the host and the exchanges that follow overlap with computation until ready().
    aside_.run([&] {
      borrow_part();
      if (!is_alone()) work_ = gathered(sent_);
    });
    if (in_place_) whole_ = sent_;
  } catch (...) {
    aside_.join();  // the side stream may still write to memory that is freed here
    return_part();
    whole_.reset();
    throw;
  }
  state_ = State::Gathering;
  return true;
}

void Chunk::ready() {
  gather();
  if (state_ != State::Gathering) return;
  end_gather(work_);
  set_base_memory(whole_);
  state_ = State::Gathered;
}

void Chunk::begin_use() {
  ready();
  if (++users_ == 1 && !stays()) refusal_ = allow_access(storage());
  state_ = State::Computing;
}

void Chunk::end_use() {
  if (--users_ > 0) return;
  state_ = State::Gathered;
  if (!stays()) refuse_access(storage(), std::move(refusal_));
}

bool Chunk::release() {
  if (stays() || state_ == State::Computing || state_ == State::Sharded) return false;
  const bool waits = state_ == State::Gathering;
  comm::Work work = std::move(work_);
  // Kept alive because the collective writes to it until it ends.
  const at::Tensor memory = std::exchange(whole_, {});
  written_ = false;
  kept_part_.reset();
  set_base_memory({});
  state_ = State::Sharded;
  if (waits) end_gather(work);
  if (in_place_) return_part();
  return true;
}

comm::Work Chunk::share() {
  kept_part_.reset();
  return is_alone() ? comm::Work() : gathered(own_slice());
}

void Chunk::fill_with_nan() {
  if (state_ == State::Gathering) {
    try {
      end_gather(work_);  // the other ranks may still read the part
    } catch (...) {       // an earlier error led here and is already recorded
    }
  }
  work_ = {};
  written_ = false;
  kept_part_.reset();
  whole_ = at::empty({length_}, options_);
  fill_with_nan_(whole_);
  set_base_memory(whole_);
  state_ = State::Gathered;
}

}  // namespace colossal::memory
