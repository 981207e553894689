#include "colossal/formats/torch_table.h"

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::formats {
namespace {

using TorchKind = PickleValue::Kind;

constexpr char kTorch[] = "torch file";

struct TorchTypeName {
  const char *storage, *dtype;
  ElementType type;
};
constexpr TorchTypeName kTorchTypes[] = {
    {"torch.DoubleStorage", "torch.float64", ElementType::F64},
    {"torch.FloatStorage", "torch.float32", ElementType::F32},
    {"torch.HalfStorage", "torch.float16", ElementType::F16},
    {"torch.BFloat16Storage", "torch.bfloat16", ElementType::BF16},
    {"torch.LongStorage", "torch.int64", ElementType::I64},
    {"torch.IntStorage", "torch.int32", ElementType::I32},
    {"torch.ShortStorage", "torch.int16", ElementType::I16},
    {"torch.CharStorage", "torch.int8", ElementType::I8},
    {"torch.ByteStorage", "torch.uint8", ElementType::U8},
    {"torch.BoolStorage", "torch.bool", ElementType::Bool},
    {"torch.ComplexFloatStorage", "torch.complex64", ElementType::C64},
    {"", "torch.uint64", ElementType::U64},
    {"", "torch.uint32", ElementType::U32},
    {"", "torch.uint16", ElementType::U16},
    {"", "torch.float8_e4m3fn", ElementType::F8E4M3},
    {"", "torch.float8_e5m2", ElementType::F8E5M2},
};

/// Returns the type with this name of a storage, or if `is_dtype`, of a dtype.
ElementType type_of_torch(const std::string& name, bool is_dtype, const std::string& where) {
  for (const TorchTypeName& row : kTorchTypes)
    if (!name.empty() && name == (is_dtype ? row.dtype : row.storage)) return row.type;
  throw Error(kTorch, concat(where, " must have elements of a known type: got ", printable(name)));
}

bool makes_tensor(const std::string& function) {
  return function == "torch._utils._rebuild_tensor_v2" || function == "torch._utils._rebuild_tensor" ||
         function == "torch._utils._rebuild_tensor_v3";
}
bool makes_parameter(const std::string& function) {
  return function == "torch._utils._rebuild_parameter" || function == "torch._utils._rebuild_parameter_with_state";
}

/// Reads tensors of one pickle.
class TorchTensors {
 public:
  TorchTensors(const Pickle& pickle, const std::string& where) : pickle_(pickle), where_(where) {}

  bool is_tensor(const PickleValue& value) const {
    const std::string function = pickle_.function_of(value);
    return value.kind == TorchKind::Call && (makes_tensor(function) || makes_parameter(function));
  }

  TorchTensor read(const PickleValue& value, const std::string& name) const {
    const std::string where = concat(where_, ": ", printable(name));
    const PickleValue* call = &value;
    if (makes_parameter(pickle_.function_of(*call))) call = &argument(*call, 0, where);
    const std::string function = pickle_.function_of(*call);
    require(call->kind == TorchKind::Call && makes_tensor(function), kTorch, where,
            " must be a tensor: got one that needs the function ", printable(function.empty() ? "?" : function),
            ", which is not run; load the file in Python and save its state_dict() with torch.save");
    const PickleValue& external = argument(*call, 0, where);
    require(external.kind == TorchKind::External, kTorch, where, " must have a storage: got none");
    TorchTensor tensor{read_torch_storage(pickle_, external, where), {}};
    tensor.place.shape = numbers(argument(*call, 2, where), where);
    tensor.place.strides = numbers(argument(*call, 3, where), where);
    if (function.ends_with("_v3"))
      tensor.place.type = type_of_torch(pickle_.function_of(argument(*call, 6, where)), true, where);
    else
      tensor.place.type = tensor.storage.type.value_or(ElementType::U8);
    const PickleValue& first = argument(*call, 1, where);
    const auto bytes = static_cast<uint64_t>(bytes_of(tensor.place.type));
    const bool is_there = first.kind == TorchKind::Integer && first.integer >= 0 &&
                          !__builtin_mul_overflow(static_cast<uint64_t>(first.integer), bytes, &tensor.place.begin);
    require(is_there, kTorch, where, " must begin within its storage: got element ", first.integer);
    return tensor;
  }

 private:
  const PickleValue& argument(const PickleValue& call, size_t index, const std::string& where) const {
    const PickleValue& all = pickle_.item(call, 1);
    require(index < all.items.size(), kTorch, where, " must have the arguments of ",
            printable(pickle_.function_of(call)), ": got ", all.items.size());
    return pickle_.item(all, index);
  }
  /// Returns the numbers of a tuple, or of a torch.Size that wraps one.
  std::vector<int64_t> numbers(const PickleValue& value, const std::string& where) const {
    const PickleValue* tuple = &value;
    if (pickle_.function_of(value) == "torch.Size" && value.kind == TorchKind::Call) tuple = &argument(value, 0, where);
    constexpr size_t kMaxTorchDimensions = 64;
    require((tuple->kind == TorchKind::Tuple || tuple->kind == TorchKind::List) &&
                tuple->items.size() <= kMaxTorchDimensions,
            kTorch, where, " must have a tuple of at most ", kMaxTorchDimensions, " sizes and one of strides");
    std::vector<int64_t> all;
    for (const PickleId id : tuple->items) {
      require(pickle_[id].kind == TorchKind::Integer, kTorch, where, " must have integers as sizes and strides");
      all.push_back(pickle_[id].integer);
    }
    return all;
  }

  const Pickle& pickle_;
  const std::string& where_;
};

/// Finds the dict of the weights.
class TorchWeightsDict {
 public:
  TorchWeightsDict(const Pickle& pickle, const std::string& where)
      : pickle_(pickle), tensors_(pickle, where), where_(where) {}

  const PickleValue& find() const {
    const PickleValue& root = pickle_.root();
    require(root.kind == TorchKind::Dict, kTorch, where_, " must hold a dict of weights: got ",
            root.kind == TorchKind::Call
                ? concat("an object that needs ", printable(pickle_.function_of(root)), ", which is not run")
                : std::string("another value"),
            "; save model.state_dict() with torch.save");
    if (const PickleValue* ema = pickle_.find(root, "ema"))
      if (const PickleValue* params = pickle_.find(*ema, "params"); params && has_tensors(*params)) return *params;
    for (const char* key : {"state_dict", "model", "module"})
      if (const PickleValue* dict = pickle_.find(root, key); dict && has_tensors(*dict)) return *dict;
    if (has_tensors(root)) return root;
    return only_item(root);
  }

 private:
  bool has_tensors(const PickleValue& dict) const {
    if (dict.kind != TorchKind::Dict) return false;
    for (size_t i = 1; i < dict.items.size(); i += 2)
      if (tensors_.is_tensor(pickle_.item(dict, i))) return true;
    return false;
  }
  const PickleValue& only_item(const PickleValue& root) const {
    const PickleValue* found = nullptr;
    int count = 0;
    std::string names, functions;
    for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
      const PickleValue &key = pickle_.item(root, i), &value = pickle_.item(root, i + 1);
      if (value.kind == TorchKind::Call && functions.empty())
        functions = concat(", and an object that needs ", printable(pickle_.function_of(value)), ", which is not run");
      if (!has_tensors(value)) continue;
      names += (count++ > 0 ? ", " : "") + printable(key.text);
      found = &value;
    }
    require(found != nullptr, kTorch, where_, " must hold a dict of weights: got no tensors", functions,
            "; save model.state_dict() with torch.save");
    require(count == 1, kTorch, where_, " must hold one dict of weights: got ", names,
            "; save the one that is meant with torch.save");
    return *found;
  }

  const Pickle& pickle_;
  const TorchTensors tensors_;
  const std::string& where_;
};

}  // namespace

TorchStorage read_torch_storage(const Pickle& pickle, const PickleValue& external, const std::string& where) {
  const PickleValue& id = pickle.item(external, 0);
  const auto is = [&](size_t i, TorchKind kind) { return i < id.items.size() && pickle.item(id, i).kind == kind; };
  require(id.kind == TorchKind::Tuple && is(0, TorchKind::Text) && pickle.item(id, 0).text == "storage" &&
              is(1, TorchKind::Function) && is(2, TorchKind::Text) && is(4, TorchKind::Integer),
          kTorch, where, " must have a storage as torch.save writes it: got another object");
  TorchStorage storage{pickle.item(id, 2).text};
  const std::string name = pickle.function_of(pickle.item(id, 1));
  if (name != "torch.storage.UntypedStorage" && name != "torch.UntypedStorage")
    storage.type = type_of_torch(name, false, where);
  int64_t first = 0, count = pickle.item(id, 4).integer;
  if (is(5, TorchKind::Tuple)) {  // a view: its own key, its first element and its elements
    const PickleValue& view = pickle.item(id, 5);
    require(view.items.size() == 3 && pickle.item(view, 1).kind == TorchKind::Integer &&
                pickle.item(view, 2).kind == TorchKind::Integer,
            kTorch, where, " must be in a part of a storage as torch.save writes it: got another object");
    first = pickle.item(view, 1).integer;
    count = pickle.item(view, 2).integer;
  }
  require(first >= 0 && count >= 0, kTorch, where, " must be in a storage of at least 0 elements: got ", count,
          " from ", first, " on");
  storage.first = static_cast<uint64_t>(first);
  storage.count = static_cast<uint64_t>(count);
  return storage;
}

std::map<std::string, TorchTensor> read_torch_table(const Pickle& pickle, const std::string& where) {
  const TorchTensors tensors(pickle, where);
  const PickleValue& dict = TorchWeightsDict(pickle, where).find();
  std::map<std::string, TorchTensor> table;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue &key = pickle.item(dict, i), &value = pickle.item(dict, i + 1);
    if (key.kind != TorchKind::Text || value.kind != TorchKind::Call) continue;
    table.insert_or_assign(key.text, tensors.read(value, key.text));
  }
  return table;
}

}  // namespace colossal::formats
