#include "colossal/train/whole_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/comm/agreement.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/optimization.h"

namespace colossal::train {

/// Where a tensor is: in a chunk, or it is a buffer.
struct WholeTensors::Source {
  memory::Chunk* chunk = nullptr;
  memory::Slot slot{};
  std::vector<checkpoint::NamedTensor> parts{};  // of this rank
  at::Tensor buffer{};
};

WholeTensors::WholeTensors(Optimization& optimization, comm::Mesh& mesh, const ModuleTensors::Named& buffers)
    : optimization_(optimization), mesh_(mesh) {
  memory::ChunkStore& store = optimization.store();
  const auto& masters = store.options().masters;
  for (const auto& chunk : store.chunks())
    for (const memory::Slot& slot : chunk->slots()) {
      const at::ScalarType own = chunk->options().dtype().toScalarType();
      entries_.push_back(
          {slot.parameter->name, chunk->trained() ? masters.value_or(own) : own, slot.parameter->value.sizes().vec()});
      sources_[slot.parameter->name].reset(new Source{.chunk = chunk.get(), .slot = slot});
    }
  for (checkpoint::NamedTensor& part : optimization.weights()) sources_.at(part.name)->parts.push_back(std::move(part));
  for (const auto& [name, value] : buffers) {
    entries_.push_back({name, value.scalar_type(), value.sizes().vec()});
    sources_[name].reset(new Source{.buffer = value});
  }
}

WholeTensors::WholeTensors(WholeTensors&&) noexcept = default;
WholeTensors::~WholeTensors() = default;

std::optional<NamedValue> WholeTensors::next() {
  if (next_ == entries_.size()) return std::nullopt;
  const std::string& name = entries_[next_++].name;
  return NamedValue{name, read(name)};
}

at::Tensor WholeTensors::read(const std::string& name) {
  const auto found = sources_.find(name);
  require(found != sources_.end(), "training", "names must be those of the module's tensors: got ", name);
  return read(*found->second);
}

at::Tensor WholeTensors::read(const Source& source) {
  const at::NoGradGuard no_grad;
  const comm::PhaseScope phase(mesh_.world().traffic(), comm::Phase::Other);
  if (!source.chunk) {
    at::Tensor flat = source.buffer.detach().clone(at::MemoryFormat::Contiguous).view(-1);
    if (flat.numel() > 0) mesh_.all().broadcast(flat, 0).wait();
    return flat.view(source.buffer.sizes()).cpu();
  }
  const memory::Chunk& chunk = *source.chunk;
  const auto& masters = optimization_.store().options().masters;
  at::Tensor flat =
      at::empty({source.slot.size}, chunk.trained() && masters ? chunk.options().dtype(*masters) : chunk.options());
  optimization_.store().attempt([&] {
    for (const checkpoint::NamedTensor& part : source.parts) {
      const tensor::Held held = part.value.read();
      flat.narrow(0, part.part->first, part.part->size).copy_(held.value);
    }
  });
  const int64_t begin = source.slot.offset, end = begin + source.slot.size, part = chunk.part_length();
  for (int64_t rank = begin / part; rank * part < end && begin < end; ++rank) {
    const int64_t first = std::max(begin, rank * part), last = std::min(end, (rank + 1) * part);
    at::Tensor range = flat.narrow(0, first - begin, last - first);
    chunk.sharers().broadcast(range, static_cast<int>(rank)).wait();
  }
  optimization_.check_pass();
  return flat.view(source.slot.parameter->value.sizes()).cpu();
}

namespace {

/// Returns the tensors of the folder, with their names in the module by their names in the folder.
std::vector<checkpoint::TensorEntry> folder_entries(const WholeTensors& tensors,
                                                    std::map<std::string, std::string>& own,
                                                    std::vector<std::pair<std::string, std::string>> names,
                                                    std::optional<at::ScalarType> dtype) {
  std::map<std::string, const checkpoint::TensorEntry*> by_name;
  for (const checkpoint::TensorEntry& entry : tensors.entries()) by_name[entry.name] = &entry;
  if (names.empty())
    for (const checkpoint::TensorEntry& entry : tensors.entries()) names.emplace_back(entry.name, entry.name);
  std::vector<checkpoint::TensorEntry> entries;
  for (const auto& [theirs, ours] : names) {
    const auto found = by_name.find(ours);
    require(found != by_name.end(), "training", "names must be those of the module's tensors: got ", ours);
    require(own.emplace(theirs, ours).second, "training", "names in a folder must differ: got ", theirs, " twice");
    const at::ScalarType type = found->second->dtype;
    entries.push_back({theirs, dtype && at::isFloatingType(type) ? *dtype : type, found->second->shape});
  }
  return entries;
}

}  // namespace

void save_weights(const std::string& folder, WholeTensors& tensors, comm::Group& ranks,
                  std::vector<std::pair<std::string, std::string>> names, std::optional<at::ScalarType> dtype,
                  int64_t max_file_bytes) {
  std::map<std::string, std::string> own;
  const std::vector<checkpoint::WeightFile> files =
      checkpoint::plan_weight_files(folder_entries(tensors, own, std::move(names), dtype), max_file_bytes);
  const bool writes = ranks.rank() == 0;
  comm::agree(ranks, at::kCPU, [&] {
    if (writes) create_folder(folder);
  });
  // After a failed write rank 0 goes on to read, because the other ranks do.
  std::exception_ptr failure;
  const auto attempt = [&](const auto& work) {
    if (!writes || failure) return;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  for (const checkpoint::WeightFile& file : files) {
    std::unique_ptr<checkpoint::SafetensorsWriter> writer;
    attempt([&] {
      writer = std::make_unique<checkpoint::SafetensorsWriter>(folder + "/" + file.file, file.entries,
                                                               std::map<std::string, std::string>{{"format", "pt"}});
    });
    for (const checkpoint::TensorEntry& entry : file.entries) {
      const at::Tensor whole = tensors.read(own.at(entry.name));
      attempt([&] { writer->write(whole.to(entry.dtype)); });
    }
    attempt([&] { writer->finish(); });
  }
  attempt([&] { checkpoint::finish_weight_files(folder, files); });
  comm::agree(ranks, at::kCPU, [&] {
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace colossal::train
