#include "support/called_operators.h"

#include <map>
#include <mutex>
#include <set>

namespace colossal::test {

struct CalledOperators::Notes {
  struct Operator {
    int calls = 0;
    std::set<const void*> given;  // storages of the operands
  };
  std::mutex mutex;
  std::map<std::string, Operator> operators;
};

CalledOperators::Notes& CalledOperators::notes() {
  static Notes notes;
  return notes;
}

CalledOperators::CalledOperators() {
  notes().operators.clear();
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(&note).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

CalledOperators::~CalledOperators() { at::removeCallback(handle_); }

int CalledOperators::operator()(const std::string& name) const {
  const std::lock_guard lock(notes().mutex);
  const auto found = notes().operators.find("aten::" + name);
  return found == notes().operators.end() ? 0 : found->second.calls;
}

bool CalledOperators::with(const std::string& name, const at::Tensor& x) const {
  const std::lock_guard lock(notes().mutex);
  const auto found = notes().operators.find("aten::" + name);
  return found != notes().operators.end() && found->second.given.contains(x.storage().unsafeGetStorageImpl());
}

std::unique_ptr<at::ObserverContext> CalledOperators::note(const at::RecordFunction& fn) {
  const std::lock_guard lock(notes().mutex);
  Notes::Operator& op = notes().operators[fn.name()];
  ++op.calls;
  for (const c10::IValue& input : fn.inputs())
    if (input.isTensor() && input.toTensor().defined() && input.toTensor().has_storage())
      op.given.insert(input.toTensor().storage().unsafeGetStorageImpl());
  return nullptr;
}

}  // namespace colossal::test
