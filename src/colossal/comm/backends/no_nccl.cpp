#include "colossal/base/error.h"
#include "colossal/comm/backends/c10d.h"

namespace colossal::comm {

bool has_nccl() { return false; }

std::string pci_id_of_gpu(int index) { return concat("cuda:", index); }

std::shared_ptr<Backend> make_nccl_group(const NcclOptions& options, std::shared_ptr<Store>) {
  throw Error("comm", concat("group \"", options.name,
                             "\": this build has no NCCL, whose headers come with a CUDA build of "
                             "torch; use backend = \"auto\", or build against such a torch (LIBTORCH_ROOT)"));
}

}  // namespace colossal::comm
