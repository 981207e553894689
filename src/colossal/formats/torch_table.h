// The table of weights in a pickle of torch.save: which dict holds them, and where the storage of each tensor is.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "colossal/formats/pickle.h"
#include "colossal/formats/tensor_file.h"

namespace colossal::formats {

/// A storage that a pickle refers to. A file has it under its key.
struct TorchStorage {
  std::string key{};
  std::optional<ElementType> type{};  ///< none = a storage of bytes
  uint64_t first = 0;                 ///< element of the storage of the file at which it begins
  uint64_t count = 0;                 ///< elements, or bytes

  uint64_t element_bytes() const { return type ? static_cast<uint64_t>(bytes_of(*type)) : 1; }
};

/// A tensor of the table. `place.storage` is not set.
struct TorchTensor {
  TorchStorage storage;
  StridedTensor place;
};

/// Returns the storage that an External of the pickle means: ("storage", torch.FloatStorage, key, device, elements),
/// and in the older form of files a sixth value, a part of it. Errors ("torch file", `where`): any other.
TorchStorage read_torch_storage(const Pickle& pickle, const PickleValue& external, const std::string& where);

/// Returns the tensors of the weights. They are in the dict at ema.params, state_dict, model or module, the first that
/// has tensors; else in the outermost dict; else in the only one of its items that is a dict with tensors. Items of the
/// weights that are no tensors, such as numbers, are left out.
/// Errors ("torch file", `where` and rule): no such dict, or several; a value of the weights that needs a function
///         other than OrderedDict and those of torch._utils that make tensors and parameters, by the function's name; a
///         tensor whose arguments are not those of torch.save; elements of a type that ElementType lacks.
std::map<std::string, TorchTensor> read_torch_table(const Pickle& pickle, const std::string& where);

}  // namespace colossal::formats
