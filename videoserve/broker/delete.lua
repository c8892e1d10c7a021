-- p: id, tenant?
local tenant = get(p.id, 'tenant')
if not tenant or (p.tenant and tenant ~= p.tenant) then
  return {error = 'missing'}
end
return {freed = remove_record(p.id)}
