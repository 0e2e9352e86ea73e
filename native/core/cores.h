// Cores that this process may use: those it may run on (taskset, cpuset), at most as many as a container's limit of CPU
// time (cgroup, versions 1 and 2) lets it keep busy. A limit of 1.5 cores counts as 2. Read anew at every call, because
// both can change while the process runs; a call costs some file reads, so callers keep the answer.
#pragma once
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace cb {

// The smallest limit of cores that the cgroups named in `memberships` (the text of /proc/self/cgroup) have under `root`
// (/sys/fs/cgroup), or 0 where none has a limit. A group is limited by its parents too.
inline double cgroup_cores(std::istream& memberships, const std::string& root) {
  double least = 0.0;
  const auto take = [&](double quota, double period) {
    if (quota > 0 && period > 0 && (least == 0.0 || quota / period < least)) least = quota / period;
  };
  const auto number = [](const std::string& path) {
    double value = 0.0;
    std::ifstream file(path);
    return file >> value ? value : 0.0;
  };
  for (std::string line; std::getline(memberships, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string mount = root + (unified ? "" : "/" + controllers);
    for (std::string group = line.substr(second + 1);; group.resize(group.rfind('/'))) {
      if (group == "/") group.clear();
      const std::string folder = mount + group;
      if (unified) {  // "200000 100000", or "max 100000"
        std::ifstream file(folder + "/cpu.max");
        double quota = 0.0, period = 0.0;
        if (file >> quota >> period) take(quota, period);
      } else {  // -1: no limit
        take(number(folder + "/cpu.cfs_quota_us"), number(folder + "/cpu.cfs_period_us"));
      }
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

inline size_t usable_cores() {
  size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) cores = static_cast<size_t>(CPU_COUNT(&set));
  std::ifstream memberships("/proc/self/cgroup");
  const double limit = cgroup_cores(memberships, "/sys/fs/cgroup");
  if (limit > 0) cores = std::min(cores, static_cast<size_t>(std::max(1.0, std::ceil(limit))));
#endif
  return cores;
}

}  // namespace cb
